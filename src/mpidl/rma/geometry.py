"""How mailboxes look: arithmetic without MPI, so that a job can be planned where there is none."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.wire import Wire

#: Bytes that the rings of all workers may take in one server's window, and the slots a ring has at most and at least.
MAILBOX_BYTES = 256 << 20
MOST_SLOTS, FEWEST_SLOTS = 32, 2
#: Numbers in the header of a slot.
HEADER = 6


class Geometry(NamedTuple):
    """How the rings of one server look."""

    workers: int
    slots: int
    chunk: int  # elements in a slot
    chunks: int  # chunks in a whole push
    dtype: np.dtype
    wire: Wire | None  # how chunks are encoded
    slot: int  # bytes of a slot

    @classmethod
    def of(
        cls, shard: Range, workers: int, dtype: Any, wire: Wire | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> Geometry:
        """Return the geometry for a shard: chunks of `chunk_bytes` (decoded), as many slots as memory allows."""
        dtype = np.dtype(dtype)
        chunk = min(shard.size, max(1, chunk_bytes // dtype.itemsize))
        chunks = -(-shard.size // chunk)
        slot = chunk * dtype.itemsize if wire is None else wire.size(chunk, dtype)
        affordable = MAILBOX_BYTES // (workers * slot)
        slots = max(FEWEST_SLOTS, min(MOST_SLOTS, chunks + 1, affordable))
        return cls(workers, slots, chunk, chunks, dtype, wire, slot)

    def regions(self) -> dict[str, tuple[Any, int]]:
        """Return the window regions that the server offers."""
        return {
            "published": (np.int64, self.workers),
            "consumed": (np.int64, self.workers),
            "headers": (np.int64, self.workers * self.slots * HEADER),
            "slots": (np.uint8, self.workers * self.slots * self.slot),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all regions together."""
        return sum(np.dtype(dtype).itemsize * count for dtype, count in self.regions().values())
