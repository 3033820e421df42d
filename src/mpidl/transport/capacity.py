"""The sizes of a transport's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpidl.parameters.ranges import Range, within
from mpidl.parameters.shards import Held
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.transport.mailbox_geometry import MailboxGeometry
from mpidl.wire import Wire, encoded_bytes


@dataclass(frozen=True)
class Capacity:
    """The sizes of a transport's memory, the same on all ranks.

    Attributes
    ----------
    shards : sequence of Range
        The shards of servers or, without servers, of workers.
    dtype : dtype
        The parameters' dtype.
    wire, wire_fetch : Wire, optional
        The encodings of pushes and of fetches.
    within_nodes : bool
        Whether they are encoded between ranks of one node, too, as in deterministic runs.
    evaluations : int
        Number of epochs that can be evaluated.
    figures : int
        Number of figures of an evaluation.
    sums : int
        Number of sums that a worker posts of its parts of an evaluation.
    units : int
        Most units of a coordinator's evaluation; 0 without a coordinator that drives the algorithm.
    shared_vectors : int
        Vectors of parameters that the workers share in their node's memory; 0 for none.
    chunk_bytes : int
        Bytes of a chunk; see `mpidl.transport.mailbox_geometry.MailboxGeometry`.
    statistics : sequence of Range
        Ranges of the parameters that hold statistics, which are not encoded.
    held : sequence of Held
        The shards with their holders. By default, server or replica k holds shard k, for replicas of one rank.
    slices : sequence of Range
        Each partition's slice of the vector; by default, one partition has all.
    """

    shards: Sequence[Range]
    dtype: Any
    wire: Wire | None = None
    wire_fetch: Wire | None = None
    within_nodes: bool = True
    evaluations: int = 1
    figures: int = 2
    sums: int = 3
    units: int = 0
    shared_vectors: int = 0
    chunk_bytes: int = CHUNK_BYTES
    statistics: Sequence[Range] = ()
    held: Sequence[Held] = ()
    slices: Sequence[Range] = ()

    def mailboxes(self, shard: int, workers: int) -> MailboxGeometry:
        """Return the mailboxes of `workers` workers for a shard."""
        within = self.within_nodes or (self.wire is not None and self.wire.rows > 1)
        part = self.shards[shard]
        return MailboxGeometry.of(
            part, workers, self.dtype, self.wire, self.chunk_bytes, within_nodes=within, statistics=self.statistics
        )

    def answers(self, shards: Sequence[Range]) -> int:
        """Return the bytes of the encoded answers to a fetch of shards; 0 if fetches are not encoded."""
        if (wire := self.wire_fetch) is None:
            return 0
        return sum(encoded_bytes(wire, each.size, self.dtype, within(self.statistics, each)) for each in shards)

    def held_by(self, holder: int) -> list[int]:
        """Return the numbers of the shards that a server holds or, without servers, a replica."""
        return [number for number, each in enumerate(self._held) if each.holder == holder]

    def of_partition(self, partition: int) -> list[int]:
        """Return the numbers of the shards that make up a partition's slice, in its order."""
        return [number for number, each in enumerate(self._held) if each.partition == partition]

    def origin(self, partition: int) -> int:
        """Return where a partition's slice begins."""
        return self.slices[partition].start if self.slices else 0

    @property
    def _held(self) -> Sequence[Held]:
        return self.held or [Held(range, holder) for holder, range in enumerate(self.shards)]
