"""What the links of all roles have in common."""

from __future__ import annotations

import numpy as np

from mpidl.rma.backoff import Backoff
from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import ANNOUNCING, REQUESTS, Control, Order, Saved, Tag
from mpidl.wire import ErrorFeedback


class WindowLink:
    """See `mpidl.transport.interface.link.Link`.

    Parameters
    ----------
    shared : SharedState
    """

    def __init__(self, shared: SharedState) -> None:
        self._shared, self._window, self._doorbells = shared, shared.window, shared.doorbells
        self._coordinator, self.crowded = shared.roles.coordinator, shared.crowded
        self._numbers = np.zeros(len(Control), np.int64)
        self._posted: dict[str, np.ndarray] = {}

    def backoff(self, longest: float | None = None) -> Backoff:
        """See `Link.backoff`."""
        return self._shared.backoff(longest)

    def order(self) -> Order:
        """See `FollowerLink.order`: asks the coordinator."""
        self._window.get(self._numbers, self._coordinator, "control")
        self._window.flush(self._coordinator)
        numbers = self._numbers.tolist()
        return Order(numbers[Control.ORDER], numbers[Control.LAST], numbers[Control.PHASE])

    def interval(self, shortest: float) -> float:
        """See `FollowerLink.interval`."""
        return max(shortest, len(self._shared.workers) / REQUESTS)

    def signal(self) -> None:
        """See `FollowerLink.signal`."""
        self._control(Control.SIGNALS).fetch_add()

    def report_saved(self, saved: Saved) -> None:
        """See `FollowerLink.report_saved`."""
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

    def _post(self, region: str, number: int, status: np.ndarray, wake: bool) -> None:
        """Write a rank's status into the coordinator's window: what announces other fields, after these."""
        row = self._posted.get(region)
        if row is None:
            row = self._posted[region] = np.zeros_like(status)
        names = [name for name in ANNOUNCING if name in (status.dtype.names or ()) and status[name] != row[name]]
        before = [int(row[name][0]) for name in names]
        row[:] = status
        for name, value in zip(names, before, strict=True):
            row[name] = value
        self._put(region, number, row)
        for name in names:
            row[name] = status[name]
            self._put(region, number, row)
        if wake:
            self._doorbells.ring(self._coordinator)

    def _put(self, region: str, number: int, values: np.ndarray) -> None:
        self._window.put(values, self._coordinator, region, number)
        self._window.order(self._coordinator)
