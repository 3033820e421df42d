"""How a server's mailboxes are laid out: arithmetic without MPI, so that a job can be planned where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import Range, within
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.transport.protocol import Header
from mpidl.wire import BLOCK, Wire, WithStatistics

#: Most bytes of the rings of all workers in one server's memory, and the largest and smallest number of a ring's slots.
MAILBOX_BYTES = 256 << 20
MOST_SLOTS, FEWEST_SLOTS = 32, 2
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
        *, room: int = MAILBOX_BYTES, within_nodes: bool = True, statistics: Sequence[Range] = (),
    ) -> MailboxGeometry:  # fmt: skip
        """Return the geometry for a shard: chunks of `chunk_bytes` (decoded), and as many slots as `room` bytes allow.

        Where many workers leave too little memory for two slots of a ring, chunks are smaller. Unless workers on the
        server's node encode, too (`within_nodes`), each ring has room for chunks as they are.
        `statistics` are ranges of the whole vector, which travel as they are.
        """
        dtype = np.dtype(dtype)
        most = room // (workers * FEWEST_SLOTS * dtype.itemsize) // BLOCK * BLOCK
        chunk = min(shard.size, max(1, chunk_bytes // dtype.itemsize), max(most, FEWEST_ELEMENTS))
        chunks = -(-shard.size // chunk)
        encoding = None if wire is None else WithStatistics(wire, within(statistics, shard))
        slot = chunk * dtype.itemsize if encoding is None else encoding.largest(chunk, dtype)
        whole = 0 if wire is None or within_nodes else chunk * dtype.itemsize
        affordable = room // (workers * max(slot, whole))
        slots = max(FEWEST_SLOTS, min(MOST_SLOTS, chunks + 1, affordable))
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
        return self.workers * ((2 + self.slots * len(Header)) * np.dtype(np.int64).itemsize + self.ring)
