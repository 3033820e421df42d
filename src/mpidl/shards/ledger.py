"""A shard's counters in memory that outlives its process, so that another process can take the shard over.

Each ring of pushes has a row: the number of the message being applied, the number of those applied, the header of the
push that was begun last, and two entries with the shard's numbers at the end of a push. Both numbers are raised by
storing one word. The open push and the entry are written before `APPLIED` is raised to the number of their message, an
entry in the place of the older one. So the row has a whole entry wherever the process ends, and a message was being
applied then if `APPLYING` is ahead of `APPLIED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

from mpidl.shards.shard import Shard
from mpidl.shards.staleness import BINS
from mpidl.shards.state import PushHeader


class OpenPush(NamedTuple):
    """A push with several chunks; `applied` is the number of its first message, and `push` the worker's of it."""

    applied: int
    push: int
    ordinal: int
    fetched: int
    staleness: int
    first: int
    last: int


class Entry(NamedTuple):
    """The shard's numbers after the last message of a push, or one between two pushes.

    `applied` is the number of that message, `sequence` counts those of all rings; `push` and `chunk` are its own.
    """

    applied: int
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


#: Places in a row.
APPLYING, APPLIED, HEADER = 0, 1, 2
ENTRIES = HEADER + len(OpenPush._fields)
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
        self._shard, self._counts, self._last = shard, numbers[:BINS], shard.chunks - 1
        self._rows = numbers[BINS:].reshape(-1, _ROW)
        # Views to which Python stores a number in a third of the time that an array takes.
        self._words, self._bytes = numbers[BINS:].data, numbers[BINS:].view(np.uint8).data
        self._pack_header = Struct(f"={len(OpenPush._fields)}q").pack_into
        self._pack_entry = Struct(f"={_ENTRY}q").pack_into
        self._sequence, self._applied = 0, [0] * len(self._rows)
        # The place of each ring's last entry.
        self._current = [0] * len(self._rows)

    def open(self) -> None:
        """Note the shard as it is before the first message of any ring."""
        self._counts[...] = self._shard.staleness.counts
        self._shard.staleness.counts = self._counts
        for ring in range(len(self._rows)):
            for _ in range(2):
                self._write_entry(ring, 0, -1, 0)

    def close(self) -> None:
        """Move the histogram back into the shard's own memory."""
        self._shard.staleness.counts = self._counts.copy()

    def begin(self, ring: int) -> None:
        """Note that the next message of a ring, a chunk, is about to be applied."""
        self._words[ring * _ROW] = self._applied[ring] + 1

    def end(self, ring: int, push: int, chunk: int) -> None:
        """Note that it has been applied: a chunk of a push, by their numbers, or a message between two pushes."""
        self._applied[ring] = applied = self._applied[ring] + 1
        if chunk <= 0:
            self._write_entry(ring, applied, push, chunk)
        elif chunk == self._last:
            self._write_header(ring, applied, push)
        self._words[ring * _ROW + APPLIED] = applied

    def _write_entry(self, ring: int, applied: int, push: int, chunk: int) -> None:
        shard, staleness = self._shard, self._shard.staleness
        self._sequence += 1
        self._current[ring] = place = 1 - self._current[ring]
        self._pack_entry(
            self._bytes, _WORD * (ring * _ROW + ENTRIES + place * _ENTRY), applied, self._sequence,
            shard.clock, shard.begun, shard.pushes, shard.dropped, shard.batch,
            staleness.sum, staleness.max, push, chunk,
        )  # fmt: skip

    def _write_header(self, ring: int, applied: int, push: int) -> None:
        header = self._shard.open[ring]
        self._pack_header(
            self._bytes, _WORD * (ring * _ROW + HEADER), applied, push,
            header.ordinal, header.fetched, header.staleness, *header.batches,
        )  # fmt: skip

    # Another process goes on.

    def resume(self) -> Sequence[tuple[int, int, int]]:
        """Give the shard the numbers that another process has noted.

        Return for each ring the number of its messages that have been applied, and the last one's push and chunk.
        """
        shard, found, entries = self._shard, [], []
        for ring, row in enumerate(self._rows.tolist()):
            applied, header = row[APPLIED], OpenPush(*row[HEADER:ENTRIES])
            both = [Entry(*row[start : start + _ENTRY]) for start in (ENTRIES, ENTRIES + _ENTRY)]
            entry = max(each for each in both if each.applied <= applied)
            self._applied[ring], self._current[ring] = applied, both.index(entry)
            entries.append(entry)
            push, chunk = entry.push, entry.chunk
            if entry.applied < header.applied <= applied:
                push, chunk = header.push, self._last - (applied - header.applied)
                batches = header.first, header.last
                shard.reopen(PushHeader(ring, header.ordinal, header.fetched, header.staleness, batches), chunk)
            found.append((applied, push, chunk))
        last = max(entries, key=lambda entry: entry.sequence)
        self._sequence, shard.clock, shard.pushes = last.sequence, last.clock, last.pushes
        # Of the pushes that were accepted, the last one may be open.
        shard.begun = max(last.begun, *(push.ordinal for push in shard.open.values()), 0)
        shard.dropped, shard.batch = last.dropped, last.batch
        shard.staleness.counts = self._counts
        shard.staleness.sum, shard.staleness.max = last.sum, last.largest
        return found

    def torn(self) -> int | None:
        """Return the ring whose next chunk another process was applying when it ended."""
        return next((ring for ring, row in enumerate(self._rows) if row[APPLYING] > row[APPLIED]), None)

    def forget(self, fetched: int) -> None:
        """Undo the count of a half-applied push, if it has been counted."""
        if self._counts.sum() > self._shard.pushes:
            self._counts[min(self._shard.clock - fetched, BINS - 1)] -= 1
