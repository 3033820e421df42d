"""A shard's numbers in memory that outlives its process, so that another process can go on with the shard.

Each ring of pushes has a row: the number of the message being applied, the number of those applied, the header of the
open push, and two entries. Both numbers are raised by storing one word. Before `APPLIED` is raised, the shard's numbers
after this message are written into the entry for its parity, which the present value doesn't select. So the row selects
a whole entry wherever the process ends, and a message was being applied then if `APPLYING` is ahead of `APPLIED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

from mpidl.shards.shard import Shard
from mpidl.shards.staleness import BINS
from mpidl.shards.state import PushHeader


class Entry(NamedTuple):
    """The shard's numbers after a message.

    `sequence` counts the messages of all rings; `push` and `chunk` are the message's own.
    """

    sequence: int
    clock: int
    begun: int
    pushes: int
    dropped: int
    batch: int
    sum: int
    largest: int
    push: int
    chunk: int


#: Places in a row; that of the header has the fields of a `PushHeader` but the worker.
APPLYING, APPLIED, HEADER, ENTRIES = 0, 1, 2, 7
_ENTRY = len(Entry._fields)
_ROW = ENTRIES + 2 * _ENTRY
_WORD = np.dtype(np.int64).itemsize


def region(shard: int) -> str:
    """Return the name of the window region of the ledger of shard number `shard`."""
    return f"ledger/{shard}"


def size(rings: int) -> int:
    """Return the number of int64 of a ledger for a number of rings."""
    return BINS + rings * _ROW


class Ledger:
    """Notes what a shard has done with the messages of each ring in `numbers`, int64 of shape (size(rings),).

    The shard's histogram of staleness moves there, too.
    """

    def __init__(self, shard: Shard, numbers: np.ndarray) -> None:
        self._shard, self._counts = shard, numbers[:BINS]
        self._rows = numbers[BINS:].reshape(-1, _ROW)
        # Views to which Python stores a number in a third of the time that an array takes.
        self._words, self._bytes = numbers[BINS:].data, numbers[BINS:].view(np.uint8).data
        self._pack_header = Struct(f"={ENTRIES - HEADER}q").pack_into
        self._pack = Struct(f"={_ENTRY}q").pack_into
        self._sequence, self._applied = 0, [0] * len(self._rows)

    def open(self) -> None:
        """Note the shard as it is before the first message of any ring."""
        self._counts[...] = self._shard.staleness.counts
        self._shard.staleness.counts = self._counts
        for ring in range(len(self._rows)):
            self._write(ring, 0, -1, 0)

    def close(self) -> None:
        """Move the histogram back into the shard's own memory."""
        self._shard.staleness.counts = self._counts.copy()

    def begin(self, ring: int) -> None:
        """Note that the next message of a ring, a chunk, is about to be applied."""
        self._words[ring * _ROW] = self._applied[ring] + 1

    def end(self, ring: int, push: int, chunk: int) -> None:
        """Note that it has been applied: a chunk of a push, by their numbers, or a message between two pushes."""
        self._applied[ring] = applied = self._applied[ring] + 1
        self._sequence += 1
        if 0 < chunk == self._shard.chunks - 1:
            header = self._shard.open[ring]
            numbers = header.ordinal, header.fetched, header.staleness, *header.batches
            self._pack_header(self._bytes, _WORD * (ring * _ROW + HEADER), *numbers)
        self._write(ring, applied, push, chunk)
        self._words[ring * _ROW + APPLIED] = applied

    def _write(self, ring: int, applied: int, push: int, chunk: int) -> None:
        shard = self._shard
        staleness = shard.staleness
        self._pack(
            self._bytes, _WORD * (ring * _ROW + ENTRIES + (applied & 1) * _ENTRY),
            self._sequence, shard.clock, shard.begun, shard.pushes, shard.dropped, shard.batch,
            staleness.sum, staleness.max, push, chunk,
        )  # fmt: skip

    # Another process goes on.

    def resume(self) -> Sequence[tuple[int, Entry]]:
        """Give the shard the numbers that another process has noted.

        Return the number of messages of each ring that have been applied, and the entry after the last of them.
        """
        shard, rows = self._shard, self._rows
        self._applied = rows[:, APPLIED].tolist()
        entries = rows[:, ENTRIES:].reshape(-1, 2, _ENTRY)
        found = [Entry(*entries[ring, applied & 1].tolist()) for ring, applied in enumerate(self._applied)]
        last = max(found)
        self._sequence, shard.clock, shard.begun = last.sequence, last.clock, last.begun
        shard.pushes, shard.dropped, shard.batch = last.pushes, last.dropped, last.batch
        shard.staleness.counts = self._counts
        shard.staleness.sum, shard.staleness.max = last.sum, last.largest
        for ring, entry in enumerate(found):
            if entry.chunk > 0:
                ordinal, fetched, staleness, *batches = rows[ring, HEADER:ENTRIES].tolist()
                shard.open[ring] = PushHeader(ring, ordinal, fetched, staleness, (batches[0], batches[1]))
        return list(zip(self._applied, found, strict=True))

    def torn(self) -> int | None:
        """Return the ring whose next chunk another process was applying when it ended."""
        return next((ring for ring, row in enumerate(self._rows) if row[APPLYING] > row[APPLIED]), None)

    def forget(self, fetched: int) -> None:
        """Take back the count of a push of which the last message is torn, if it has been counted."""
        if self._counts.sum() > self._shard.pushes:
            self._counts[min(self._shard.clock - fetched, BINS - 1)] -= 1
