"""The coordinator's orders, as the ranks that follow them read them."""

from __future__ import annotations

import numpy as np

from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ROUNDS, Control, Order


class OwnOrders:
    """Orders in the memory of this rank, where the coordinator writes them."""

    def __init__(self, shared: SharedState) -> None:
        self._numbers = shared.window.local("control")
        self._seen, self._order = b"", Order(0, 0, 0)

    def read(self) -> Order:
        """Return what the coordinator has ordered: the same object if nothing has changed."""
        seen = self._numbers.tobytes()
        if seen != self._seen:
            self._seen, self._order = seen, Order.of(np.frombuffer(seen, self._numbers.dtype))
        return self._order


class Orders:
    """Orders in the memory of another `rank`: of the coordinator, or of a rank that has them from it."""

    def __init__(self, shared: SharedState, rank: int) -> None:
        self._window, self._rank, self._turn = shared.window.to(rank), rank, shared.turn
        self._numbers, self._coming = np.zeros((2, len(Control)), np.int64)
        self._asked = False
        self._begun = Counter(shared.window, shared.roles.coordinator, "control", Control.BEGUN)

    def read(self) -> Order:
        """Return what the coordinator has ordered."""
        self._turn.pass_on()
        self._window.get(self._numbers, self._rank, "control")
        self._window.flush(self._rank)
        return Order.of(self._numbers)

    def recent(self) -> Order:
        """Return the order as of the previous call, and ask again without waiting for the answer.

        The first call waits, and returns the present order.
        """
        self._turn.pass_on()
        if self._asked:
            self._window.flush(self._rank)
            self._numbers[:] = self._coming
        else:
            self.read()
        self._window.get(self._coming, self._rank, "control")
        self._asked = True
        return Order.of(self._numbers)

    def taken(self) -> int:
        """Return a number below which all tickets had been taken when the order was given that was returned last."""
        return int(self._numbers[Control.TAKEN])

    def given_back(self) -> int:
        """Return how many parts of portions had been given back when the order was given that was returned last."""
        return int(self._numbers[Control.GIVEN_BACK])

    def begin_round(self, pushes: int) -> tuple[Order, int | None]:
        """Announce the number of pushes that this worker may make before it reads an order again.

        Return the order that it reads now, and the number of each worker's pushes in that order's checkpoint; None
        while that is not decided.
        """
        self._begun.raise_to(pushes)
        order = self.read()
        decided, pushes = divmod(int(self._numbers[Control.ROUND]), ROUNDS)
        return order, pushes if decided == order.number else None
