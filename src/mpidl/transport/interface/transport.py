"""A transport as a whole, which gives each role its link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mpidl.parameters.ranges import Range
from mpidl.topology.roles import Roles
from mpidl.transport.interface.coordinator import CoordinatorLink
from mpidl.transport.interface.relay import RelayLink
from mpidl.transport.interface.server import ServerLink
from mpidl.transport.interface.worker import WorkerLink
from mpidl.wire import Differences, ErrorFeedback


class Transport(Protocol):
    """Everything that a set of ranks shares. Creation and `free` are collective; it is a context manager.

    Attributes
    ----------
    rank, size : int
    roles : Roles
    workers : list of int
        Rank of each worker: those of the first replica in the order of its partitions, then those of the next, ...
    shards : sequence of Range
    chunks : list of int
        Elements of a chunk, for each shard.
    crowded : bool
        Whether the ranks of this node outnumber the cores that they may run on.
    """

    rank: int
    size: int
    roles: Roles
    workers: list[int]
    crowded: bool

    @property
    def shards(self) -> Sequence[Range]: ...
    @property
    def chunks(self) -> list[int]: ...

    def worker(
        self, number: int, feedback: Sequence[ErrorFeedback] = (), copies: Sequence[Differences] = ()
    ) -> WorkerLink:
        """Return worker `number`'s link.

        Parameters
        ----------
        number : int
        feedback : sequence of ErrorFeedback
            For each of its shards, what the wire format of pushes has left out.
        copies : sequence of Differences
            For each of its shards, what it has of the shard, where fetches are encoded.
        """
        ...

    def server(self, number: int) -> ServerLink:
        """Return the link of shard `number`, on the server that holds it."""
        ...

    def relay(
        self, number: int, feedback: Sequence[Sequence[ErrorFeedback]] = (), copies: Sequence[Differences] = ()
    ) -> RelayLink:
        """Return relay `number`'s link; see `worker`. Each of its rings leaves out something of its own."""
        ...

    def coordinator(self) -> CoordinatorLink:
        """Return the coordinator's link."""
        ...

    def quiesce(self) -> None:
        """Wait for all ranks, serving them, until all that any of them has written has arrived; collective.

        A rank that others reach does so before it waits for them in any other way.
        """

    def free(self) -> None:
        """Give everything back; what is asked of it afterwards raises RuntimeError."""
