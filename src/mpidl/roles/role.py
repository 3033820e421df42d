"""What the roles of ranks have in common, and that of a rank that waits for work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpidl.report.summary import Summary
from mpidl.rma.orders import Orders
from mpidl.rma.reports import StatusReports
from mpidl.rma.transport import Transport
from mpidl.shards.shard import Shard
from mpidl.transport.protocol import Phase
from mpidl.transport.status import WorkerStatus

if TYPE_CHECKING:
    from mpidl.roles.served import ServedShard


class Role:
    """The role of a rank; this one has nothing to do.

    A role has its own state; `bind` gives it the other ranks.

    `interrupted` says whether a signal has asked this rank to stop, and `left` whether `run` has ended early because
    others play the rank from the end of this process on. `lost` counts the chunks of pushes that `adopt` has
    found lost. `status` has the activities of a rank that pushes and fetches, and `served` the shards that it serves.
    """

    lost = 0
    status: WorkerStatus | None = None
    served: Sequence[ServedShard] = ()

    def __init__(self) -> None:
        self.interrupted = self.left = False
        self._before: list[int] = []

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards that this rank holds."""
        return ()

    def begin(self, transport: Transport) -> None:
        """Remember the shards' first parameters, and bind the role."""
        self._before = self._fingerprints()
        self.bind(transport)

    @property
    def changed(self) -> bool:
        """Whether this rank's shards have other parameters than at the beginning."""
        return self._fingerprints() != self._before

    def _fingerprints(self) -> list[int]:
        return [shard.fingerprint() for shard in self.shards]

    def bind(self, transport: Transport) -> None:
        """Work with the ranks of a transport from now on."""

    def adopt(self, transport: Transport) -> None:
        """Continue as a rank whose process has ended, from what that rank's memory says, in the place of `bind`."""
        self.bind(transport)

    def unbind(self) -> None:
        """Let go of the transport's memory, which is about to be freed."""

    def interrupt(self, number: int) -> None:
        """Ask the run to stop; called by a signal of that number."""
        self.interrupted = True

    def report_interruption(self, reports: StatusReports) -> None:
        """Tell the coordinator of a signal, if there was one."""
        if self.interrupted:
            self.interrupted = False
            reports.signal()

    def run(self) -> Summary | None:
        """Play the role to the end of the run; the coordinator returns the summary."""
        return None


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
