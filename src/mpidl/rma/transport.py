"""The transport: the shared objects of a job's ranks, and the link of each role."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpidl.rma.coordinator import CoordinatorLink
from mpidl.rma.fetches import ShardReader
from mpidl.rma.server import ServerLink
from mpidl.rma.shared_state import SharedState
from mpidl.rma.worker import WorkerLink
from mpidl.wire import Differences, ErrorFeedback


class Transport(SharedState):
    """The shared objects of a job's ranks; see `SharedState` for its parameters.

    Creation and `free` are collective; it is a context manager. Roles and engines take their links from it and keep
    their own state elsewhere, so that they can be bound to another transport.
    """

    def read_present(self, parameters: np.ndarray) -> None:
        """Read what evaluations read of all shards from their servers, as it is now, into the flat vector."""
        servers = [each for partition in range(self.partitions) for each in self.routes.servers(partition)]
        parts = [slice(*self.shards[each.shard]) for each in servers]
        reader = ShardReader(self.window, servers, parts, self.capacity.evaluated)
        reader.start(parameters)
        reader.finish()

    def worker(
        self, number: int, feedback: Sequence[ErrorFeedback] = (), copies: Sequence[Differences] = ()
    ) -> WorkerLink:
        """Return the link of worker `number`; see `WorkerLink` for the parameters."""
        return WorkerLink(self, number, feedback, copies)

    def server(self, number: int) -> ServerLink:
        """Return the link of shard `number`, on the server that holds it."""
        return ServerLink(self, number)

    def coordinator(self) -> CoordinatorLink:
        """Return the coordinator's link."""
        return CoordinatorLink(self)
