"""The sizes of a transport's memory: arithmetic without MPI, so that a job can be planned where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import Range, within
from mpidl.parameters.shards import Held
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.shards.state import PARAMETERS
from mpidl.transport.protocol import ChunkHeader
from mpidl.wire import BLOCK, Wire, WithStatistics, encoded_bytes

#: Most bytes of the rings of all workers in one server's memory, and the largest and smallest number of a ring's slots.
MAILBOX_BYTES = 256 << 20
MOST_SLOTS, FEWEST_SLOTS = 16, 2
#: Bytes of a message beside pushes, or of the answer to one, and the most answers to one worker that a server has.
SIDE_DATA_BYTES, MOST_SIDE_DATA = 1 << 17, 8
#: Fewest elements to which chunks shrink where there are many workers.
FEWEST_ELEMENTS = 4 * BLOCK


class MailboxGeometry(NamedTuple):
    """The sizes of one server's rings of slots, one ring for each worker.

    Attributes
    ----------
    workers, slots : int
        Rings, and slots of a ring.
    chunk, chunks : int
        Elements of a slot, and chunks of a whole push.
    dtype : dtype
    encoding : WithStatistics or None
        The encoding of chunks.
    slot : int
        Bytes of a slot.
    whole : int
        Bytes of a slot in the rings of workers that don't encode while others do; 0 if all encode.
    """

    workers: int
    slots: int
    chunk: int
    chunks: int
    dtype: np.dtype
    encoding: WithStatistics | None
    slot: int
    whole: int = 0

    @classmethod
    def of(
        cls, shard: Range, workers: int, dtype: Any, wire: Wire | None = None, chunk_bytes: int = CHUNK_BYTES,
        *, room: int = MAILBOX_BYTES, within_nodes: bool = True, statistics: Sequence[Range] = (), least: int = 0,
    ) -> MailboxGeometry:  # fmt: skip
        """Return the geometry for a shard: chunks of `chunk_bytes` (decoded), and as many slots as `room` bytes allow.

        Where many workers leave too little memory for two slots of a ring, chunks are smaller. Unless workers on the
        server's node encode, too (`within_nodes`), each ring has room for chunks as they are.
        `statistics` are ranges of the whole vector, which travel as they are. Other messages in the rings have at most
        `least` bytes, a multiple of 8.
        """
        dtype = np.dtype(dtype)
        most = room // (workers * FEWEST_SLOTS * dtype.itemsize) // BLOCK * BLOCK
        chunk = min(shard.size, max(1, chunk_bytes // dtype.itemsize), max(most, FEWEST_ELEMENTS))
        if chunk * dtype.itemsize < least:
            chunk = min(shard.size, -(-least // (dtype.itemsize * BLOCK)) * BLOCK)
        chunks = -(-shard.size // chunk)
        encoding = None if wire is None else WithStatistics(wire, within(statistics, shard))
        plain = chunk * dtype.itemsize
        slot = plain if encoding is None else encoding.largest(chunk, dtype)
        if least:
            # A push of one chunk leaves room behind it; the chunks of longer ones lie side by side.
            plain = -(-max(plain, least) // 8) * 8 if chunks == 1 else plain
            slot = plain if encoding is None else -(-max(slot, least) // 8) * 8
        whole = 0 if wire is None or within_nodes else plain
        affordable = room // (workers * max(slot, whole))
        wanted = max(chunks + 1, MOST_SIDE_DATA) if least else chunks + 1
        slots = max(FEWEST_SLOTS, min(MOST_SLOTS, wanted, affordable))
        return cls(workers, slots, chunk, chunks, dtype, encoding, slot, whole)

    def stride(self, encoded: bool) -> int:
        """Return the bytes from one slot to the next in the ring of a worker that encodes its chunks or doesn't."""
        return self.slot if encoded or not self.whole else self.whole

    @property
    def ring(self) -> int:
        """Bytes of the slots of a ring."""
        return self.slots * max(self.slot, self.whole)

    @property
    def nbytes(self) -> int:
        """Bytes of all rings with their counters, two for each worker, and a header for each slot."""
        return self.workers * ((2 + self.slots * len(ChunkHeader)) * np.dtype(np.int64).itemsize + self.ring)


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
    sums : int
        Number of sums that a worker posts of its parts of an evaluation.
    figures : int
        Number of figures of an evaluation after an epoch.
    units : int
        Most units of a coordinator's evaluation; 0 without a coordinator that drives the algorithm.
    shared_vectors : int
        Vectors of parameters that the workers share in their node's memory; 0 for none.
    chunk_bytes : int
        Bytes of a chunk; see `MailboxGeometry`.
    statistics : sequence of Range
        Ranges of the parameters that hold statistics, which are not encoded.
    held : sequence of Held
        The shards with their holders. By default, server or replica k holds shard k, for replicas of one rank.
    slices : sequence of Range
        Each partition's slice of the vector; by default, one partition has all.
    evaluated : str
        Name of the shards' vector that evaluations read.
    kept : sequence of str
        Names of the shards' other vectors that lie in the memory of servers' ranks, which outlives their processes.
    beside : int
        Most bytes of a message beside pushes, and of the answer to one, a multiple of 8; 0 if there are none.
    """

    shards: Sequence[Range]
    dtype: Any
    wire: Wire | None = None
    wire_fetch: Wire | None = None
    within_nodes: bool = True
    sums: int = 4
    figures: int = 2
    units: int = 0
    shared_vectors: int = 0
    chunk_bytes: int = CHUNK_BYTES
    statistics: Sequence[Range] = ()
    held: Sequence[Held] = ()
    slices: Sequence[Range] = ()
    evaluated: str = PARAMETERS
    kept: Sequence[str] = ()
    side_data: int = 0

    @property
    def vectors(self) -> list[str]:
        """Names of the shards' vectors in the memory of servers' ranks."""
        return list(dict.fromkeys((PARAMETERS, self.evaluated, *self.kept)))

    def mailboxes(self, shard: int, workers: int) -> MailboxGeometry:
        """Return the mailboxes of `workers` workers for a shard."""
        within = self.within_nodes or (self.wire is not None and self.wire.rows > 1)
        part = self.shards[shard]
        return MailboxGeometry.of(
            part, workers, self.dtype, self.wire, self.chunk_bytes, within_nodes=within, statistics=self.statistics,
            least=self.side_data,
        )  # fmt: skip

    def held_by(self, holder: int) -> list[int]:
        """Return the numbers of the shards that a server holds or, without servers, a replica."""
        return self._numbers.get(holder, [])

    def of_partition(self, partition: int) -> list[int]:
        """Return the numbers of the shards that make up a partition's slice, in its order."""
        return [number for number, each in enumerate(self._held) if each.partition == partition]

    @cached_property
    def _numbers(self) -> dict[int, list[int]]:
        """The numbers of the shards of each holder."""
        found: dict[int, list[int]] = {}
        for number, each in enumerate(self._held):
            found.setdefault(each.holder, []).append(number)
        return found

    @property
    def _held(self) -> Sequence[Held]:
        return self.held or [Held(range, holder) for holder, range in enumerate(self.shards)]


def answer_bytes(capacity: Capacity, shards: Sequence[Range]) -> int:
    """Return the bytes of the encoded answers to a fetch of shards; 0 if fetches are not encoded."""
    if (wire := capacity.wire_fetch) is None:
        return 0
    return sum(encoded_bytes(wire, each.size, capacity.dtype, within(capacity.statistics, each)) for each in shards)
