"""The rows of ids: an index that grows with each id by the same small step, and reads one cache line for most.

By linear hashing (W. Litwin 1980, Linear hashing: a new tool for file and table addressing): a bucket is a line of
`SLOTS` ids and their rows, and further lines where that doesn't suffice. When there are more than `LOAD` ids per
bucket, the next bucket in turn is split in two. Every fifth line is one of the further ones, so that all that are used
lie together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit
from mpidl.tables.distinct import mixed
from mpidl.tables.memory import Growing, prefetch

#: Ids of a line, which has 64 bytes: the ids, the rows as uint32 (0 where there is none), and the next line.
SLOTS, WIDTH = 5, 8
LOAD = 3
#: Places in a line, as uint32, of the rows and of the next line, 0 for none.
ROWS, NEXT = 2 * SLOTS, 3 * SLOTS
#: Ids whose lines are read ahead: about as many as a core can wait for at the same time.
AHEAD = 16


#: Places of an index's numbers: of ids; of buckets; 2**k - 1 for the smallest k with 2**k >= buckets; of lines in use
#: besides the buckets' first ones; and the first of these that is free again, which has the next one (0 for none).
IDS, BUCKETS, MASK, FURTHER, FREE = range(5)


class RowIndex:
    """The rows of ids, int64 each; rows are counted from 1."""

    def __init__(self) -> None:
        self._lines = Growing((WIDTH,), np.int64)
        self._numbers = np.array([0, 1, 0, 0, 0], np.int64)
        self._moved = np.empty(WIDTH, np.int64)

    def __len__(self) -> int:
        return int(self._numbers[IDS])

    def find(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Write the row of each id, int64 (n,); 0 where there is none."""
        lines = self._lines.array
        find(lines, lines.view(np.uint32), self._numbers, ids, rows)

    def read(self, ids: np.ndarray, rows: np.ndarray, values: np.ndarray, found: np.ndarray) -> None:
        """Write the row of each id, and that row's first `values`, of (rows, width), into `found`, (n, columns).

        Where there is none, this is row 0.
        """
        lines = self._lines.array
        read(lines, lines.view(np.uint32), self._numbers, ids, rows, values, found)

    def reserve(self, ids: int) -> None:
        """Make room for that many more; raise MemoryError if there is none."""
        self._lines.grow(_line((len(self) + ids) // LOAD + 8))

    def add(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Add ids that have no row yet, and their rows."""
        self.reserve(ids.size)
        done = 0
        while done < ids.size:
            lines = self._lines.array
            done += add(lines, lines.view(np.uint32), self._numbers, self._moved, ids[done:], rows[done:])
            size = len(lines)
            del lines
            if done < ids.size:
                self._lines.grow(size + 1)

    def remove(self, ids: np.ndarray) -> None:
        """Remove ids."""
        lines = self._lines.array
        remove(lines, lines.view(np.uint32), self._numbers, ids)

    def load(self, other: RowIndex) -> None:
        """Take over the ids of another index."""
        own, used = self._used(), other._used()
        self._lines.grow(used)
        self._lines.array[:used] = other._lines.array[:used]
        self._lines.array[used:own] = 0
        self._numbers[:] = other._numbers

    def _used(self) -> int:
        """Return the number of lines that have been used."""
        return int(_line(self._numbers[BUCKETS] + 4))


# Numba lets signed numbers count from an array's end, which takes time; so lines, buckets and rows are unsigned.
@jit
def _line(bucket: Any) -> Any:
    """Return a bucket's first line."""
    return np.uint64(bucket) + (np.uint64(bucket) >> np.uint64(2))


@jit
def bucket_of(id: Any, numbers: Any) -> Any:
    mask = np.uint64(numbers[MASK])
    bucket = mixed(id) & mask
    return bucket if bucket < np.uint64(numbers[BUCKETS]) else bucket & (mask >> np.uint64(1))


@jit
def look(lines: Any, numbers: Any, id: Any) -> Any:
    """Return the first line of an id's bucket, and have it read."""
    line = _line(bucket_of(id, numbers))
    prefetch(lines, WIDTH * line)
    return line


@jit
def row_of(lines: Any, parts: Any, id: Any, line: Any) -> Any:
    """Return the row of an id, 0 for none, from its bucket's first line on."""
    row = np.uint32(0)
    while True:
        # Without a branch for each slot: a slot without an id has row 0.
        for slot in range(SLOTS):
            row |= parts[line, ROWS + slot] if lines[line, slot] == id else np.uint32(0)
        line = np.uint64(parts[line, NEXT])
        if row != 0 or line == 0:
            return np.uint64(row)


@jit
def find(lines: Any, parts: Any, numbers: Any, ids: Any, rows: Any) -> None:
    for i in range(ids.size + AHEAD):
        if i < ids.size:
            rows[i] = look(lines, numbers, ids[i])
        j = i - AHEAD
        if j >= 0:
            rows[j] = row_of(lines, parts, ids[j], np.uint64(rows[j]))


@jit
def read(lines: Any, parts: Any, numbers: Any, ids: Any, rows: Any, values: Any, found: Any) -> None:
    width, columns = values.shape[1], found.shape[1]
    for i in range(ids.size + 2 * AHEAD):
        if i < ids.size:
            rows[i] = look(lines, numbers, ids[i])
        j = i - AHEAD
        if 0 <= j < ids.size:
            rows[j] = row_of(lines, parts, ids[j], np.uint64(rows[j]))
            prefetch(values, rows[j] * width)
        k = j - AHEAD
        if k >= 0:
            for column in range(columns):
                found[k, column] = values[np.uint64(rows[k]), column]


@jit
def add(lines: Any, parts: Any, numbers: Any, moved: Any, ids: Any, rows: Any) -> int:
    """Return the number of ids that could be added to the lines that there are."""
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            look(lines, numbers, ids[i + AHEAD])
        while numbers[IDS] >= LOAD * numbers[BUCKETS] or not (numbers[FREE] or 4 * numbers[FURTHER] < numbers[BUCKETS]):
            if _line(numbers[BUCKETS] + 4) >= np.uint64(lines.shape[0]):
                return i
            split(lines, parts, numbers, moved)
        put(lines, parts, numbers, ids[i], rows[i])
        numbers[IDS] += 1
    return int(ids.size)


@jit
def put(lines: Any, parts: Any, numbers: Any, id: int, row: int) -> None:
    """Put an id into the first free slot of its bucket: all lines but the last are full."""
    line = _line(bucket_of(id, numbers))
    while parts[line, NEXT]:
        line = np.uint64(parts[line, NEXT])
    slot = 0
    while slot < SLOTS and parts[line, ROWS + slot]:
        slot += 1
    if slot == SLOTS:
        following = np.uint64(numbers[FREE])
        if following:
            numbers[FREE] = parts[following, NEXT]
            parts[following, NEXT] = 0
        else:
            following = np.uint64(5 * numbers[FURTHER] + 4)
            numbers[FURTHER] += 1
        parts[line, NEXT] = following
        line, slot = following, 0
    lines[line, slot] = id
    parts[line, ROWS + slot] = row


@jit
def free(parts: Any, numbers: Any, line: int) -> None:
    """Make an empty line free."""
    parts[line, NEXT] = numbers[FREE]
    numbers[FREE] = line


@jit
def split(lines: Any, parts: Any, numbers: Any, moved: Any) -> None:
    """Add a bucket, which takes its ids from another; `moved` is memory for a line.

    The lines that this frees suffice for what it moves.
    """
    new = numbers[BUCKETS]
    if new > numbers[MASK]:
        numbers[MASK] = 2 * numbers[MASK] + 1
    numbers[BUCKETS] = new + 1
    first = line = _line(new & (numbers[MASK] >> 1))
    moved_parts = moved.view(np.uint32)
    while True:
        # In a loop, which compiles in a third of the time.
        for place in range(WIDTH):
            moved[place] = lines[line, place]
            lines[line, place] = 0
        if line != first:
            free(parts, numbers, line)
        for slot in range(SLOTS):
            if moved_parts[ROWS + slot]:
                put(lines, parts, numbers, moved[slot], moved_parts[ROWS + slot])
        line = np.uint64(moved_parts[NEXT])
        if not line:
            break


@jit
def remove(lines: Any, parts: Any, numbers: Any, ids: Any) -> None:
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            look(lines, numbers, ids[i + AHEAD])
        first = _line(bucket_of(ids[i], numbers))
        line, slot, before = first, 0, first
        while lines[line, slot] != ids[i] or not parts[line, ROWS + slot]:
            slot += 1
            if slot == SLOTS:
                before, line, slot = line, np.uint64(parts[line, NEXT]), 0
        # The bucket's last id takes its place.
        last = line
        while parts[last, NEXT]:
            before, last = last, np.uint64(parts[last, NEXT])
        end = SLOTS - 1
        while not parts[last, ROWS + end]:
            end -= 1
        lines[line, slot], parts[line, ROWS + slot] = lines[last, end], parts[last, ROWS + end]
        lines[last, end], parts[last, ROWS + end] = 0, 0
        if end == 0 and last != first:
            parts[before, NEXT] = 0
            free(parts, numbers, last)
        numbers[IDS] -= 1
