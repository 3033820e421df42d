"""How a server's mailboxes are laid out: arithmetic without MPI, so that a job can be planned where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.transport.protocol import Header
from mpidl.wire import BLOCK, Wire

#: Bytes that the rings of all workers may take in one server's memory, and the slots a ring has at most and at least.
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
    wire : Wire or None
        How chunks are encoded.
    slot : int
        Bytes of a slot.
    """

    workers: int
    slots: int
    chunk: int
    chunks: int
    dtype: np.dtype
    wire: Wire | None
    slot: int

    @classmethod
    def of(
        cls,
        shard: Range,
        workers: int,
        dtype: Any,
        wire: Wire | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        room: int = MAILBOX_BYTES,
    ) -> MailboxGeometry:
        """Return the geometry for a shard: chunks of `chunk_bytes` (decoded), and as many slots as `room` bytes allow.

        Where many workers leave too little memory for two slots of a ring, chunks are smaller.
        """
        dtype = np.dtype(dtype)
        most = room // (workers * FEWEST_SLOTS * dtype.itemsize) // BLOCK * BLOCK
        chunk = min(shard.size, max(1, chunk_bytes // dtype.itemsize), max(most, FEWEST_ELEMENTS))
        chunks = -(-shard.size // chunk)
        slot = chunk * dtype.itemsize if wire is None else wire.size(chunk, dtype)
        affordable = room // (workers * slot)
        slots = max(FEWEST_SLOTS, min(MOST_SLOTS, chunks + 1, affordable))
        return cls(workers, slots, chunk, chunks, dtype, wire, slot)

    @property
    def nbytes(self) -> int:
        """Bytes of all rings with their counters: two for each worker, and a header for each slot."""
        number = np.dtype(np.int64).itemsize
        return self.workers * (2 * number + self.slots * (len(Header) * number + self.slot))


def of_relay(
    shards: Sequence[Range], workers: int, dtype: Any, chunk_bytes: int = CHUNK_BYTES
) -> list[MailboxGeometry]:
    """Return the mailboxes that a relay of so many workers has for each shard: together as large as a server's."""
    room = MAILBOX_BYTES // len(shards)
    return [MailboxGeometry.of(shard, workers, dtype, chunk_bytes=chunk_bytes, room=room) for shard in shards]
