"""The role of a rank that waits for work."""

from __future__ import annotations

from mpidl.rma.orders import Orders
from mpidl.rma.transport import Transport
from mpidl.roles.role import Role
from mpidl.transport.protocol import Phase

#: Seconds between two looks at the coordinator's orders.
LOOK_EVERY = 0.02


class Standby(Role):
    """Sleeps until the coordinator orders the exit."""

    def bind(self, transport: Transport) -> None:
        self._orders = Orders(transport, transport.roles.coordinator)
        self._backoff = transport.backoff(LOOK_EVERY)

    def run(self) -> None:
        """Wait for the end of the run."""
        while self._orders.read().phase != Phase.EXIT:
            self._backoff.pause()
