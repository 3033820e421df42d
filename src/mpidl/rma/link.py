"""What the links of all roles have in common."""

from __future__ import annotations

import numpy as np

from mpidl.rma.backoff import Backoff
from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.topology.roles import Relay
from mpidl.transport.protocol import ANNOUNCING, REQUESTS, Control, Order, Saved, Tag
from mpidl.wire import ErrorFeedback


class WindowLink:
    """See `mpidl.transport.interface.link.Link`.

    Parameters
    ----------
    shared : SharedState
    relay : Relay, optional
        Where this rank reads orders and posts its status, if that isn't at the coordinator.
    """

    def __init__(self, shared: SharedState, relay: Relay | None = None) -> None:
        self._shared, self._window, self._doorbells = shared, shared.window, shared.doorbells
        self._coordinator, self.crowded = shared.roles.coordinator, shared.crowded
        self._numbers, self._coming = np.zeros((2, len(Control)), np.int64)
        self._asked = False
        self._posted: dict[tuple[str, int], np.ndarray] = {}
        self._reports_to, self._reporting = self._coordinator, len(shared.workers)
        self._reporting -= sum(len(each.workers) - 1 for each in shared.roles.relays)
        if relay is not None:
            self._reports_to, self._reporting = relay.rank, len(relay.workers)

    def backoff(self, longest: float | None = None) -> Backoff:
        return self._shared.backoff(longest)

    def order(self) -> Order:
        """See `FollowerLink.order`: asks the coordinator, or the relay."""
        self._window.get(self._numbers, self._reports_to, "control")
        self._window.flush(self._reports_to)
        return Order.of(self._numbers)

    def recent_order(self) -> Order:
        if self._asked:
            self._window.flush(self._reports_to)
            self._numbers[:] = self._coming
        else:
            self.order()
        self._window.get(self._coming, self._reports_to, "control")
        self._asked = True
        return Order.of(self._numbers)

    def interval(self, shortest: float) -> float:
        return max(shortest, self._reporting / REQUESTS)

    def signal(self) -> None:
        self._control(Control.SIGNALS).fetch_add()

    def report_saved(self, saved: Saved) -> None:
        self._shared.comm.send(saved, self._coordinator, Tag.SAVED)
        self._doorbells.ring(self._coordinator)

    def _encodes(self, rank: int) -> bool:
        """Return whether what travels between a server and this rank is encoded, where anything is."""
        return self._shared.capacity.within_nodes or not self._doorbells.near(rank)

    def _encoder(self, rank: int, feedback: ErrorFeedback | None) -> ErrorFeedback | None:
        """Return what encodes pushes to a server. What an encoding has left out before is still to be pushed."""
        whole = feedback is None or not (self._encodes(rank) or feedback.wire.rows > 1 or feedback.residual.any())
        return None if whole else feedback

    def _control(self, element: Control) -> Counter:
        return Counter(self._window, self._coordinator, "control", element)

    def _post(self, region: str, first: int, status: np.ndarray, wake: bool) -> None:
        """Write the status of ranks where this one reports to, if it has changed, and wake that rank if asked to."""
        posted = self._posted.get((region, first))
        if posted is None:
            posted = self._posted[region, first] = np.zeros_like(status)
        if status.tobytes() != posted.tobytes():
            self._write(region, first, status, posted)
        if wake:
            self._doorbells.ring(self._reports_to)

    def _write(self, region: str, first: int, status: np.ndarray, posted: np.ndarray) -> None:
        """Write status in place of what was posted before: what announces other fields, after these."""
        fields = status.dtype.names or ()
        names = [name for name in ANNOUNCING if name in fields and (status[name] != posted[name]).any()]
        before = [posted[name].copy() for name in names]
        posted[:] = status
        for name, values in zip(names, before, strict=True):
            posted[name] = values
        self._put(self._reports_to, region, first, posted)
        for name in names:
            posted[name] = status[name]
            self._put(self._reports_to, region, first, posted)

    def _put(self, rank: int, region: str, first: int, values: np.ndarray) -> None:
        self._window.put(values, rank, region, first)
        self._window.fence(rank)
