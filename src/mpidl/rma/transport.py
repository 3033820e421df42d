"""The transport over MPI windows."""

from __future__ import annotations

from collections.abc import Sequence

from mpidl.rma.coordinator import WindowCoordinatorLink
from mpidl.rma.relay import WindowRelayLink
from mpidl.rma.server import WindowServerLink
from mpidl.rma.shared_state import SharedState
from mpidl.rma.worker import WindowWorkerLink
from mpidl.wire import Differences, ErrorFeedback


class WindowTransport(SharedState):
    """A `mpidl.transport.interface.transport.Transport` over MPI windows; see `SharedState` for its parameters."""

    def worker(
        self, number: int, feedback: Sequence[ErrorFeedback] = (), copies: Sequence[Differences] = ()
    ) -> WindowWorkerLink:
        return WindowWorkerLink(self, number, feedback, copies)

    def server(self, number: int) -> WindowServerLink:
        return WindowServerLink(self, number)

    def relay(
        self, number: int, feedback: Sequence[Sequence[ErrorFeedback]] = (), copies: Sequence[Differences] = ()
    ) -> WindowRelayLink:
        return WindowRelayLink(self, number, feedback, copies)

    def coordinator(self) -> WindowCoordinatorLink:
        return WindowCoordinatorLink(self)
