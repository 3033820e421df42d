"""The id, last update and number of updates of each row, and the order of their use.

The order of use is a list that is linked both ways. Rows are counted from 1: entry 0 is before the oldest and after the
newest row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit
from mpidl.tables.memory import Growing, prefetch

ENTRY = np.dtype(
    [("id", np.int64), ("used", np.uint32), ("count", np.uint32), ("before", np.int32), ("after", np.int32)], align=True
)
#: Entries that are read ahead.
AHEAD = 8
#: Most rows: they are int32.
MOST = 2**31 - 2
#: Places of the number of entries that have been used, of a free one (which has the next as `after`), of the number of
#: free ones.
USED, FREE, FREED = range(3)


class Entries:
    """The entries of rows.

    Attributes
    ----------
    memory : Growing
        Of `ENTRY`, by row.
    """

    def __init__(self) -> None:
        # Not in huge pages, one of which an update would write at the same time as one of the values.
        self.memory = Growing((), ENTRY, huge=False)
        self._numbers = np.array([1, 0, 0], np.int64)
        self._sorted = True

    def __len__(self) -> int:
        """Return 1 + the highest number of a row so far."""
        return int(self._numbers[USED])

    def reserve(self, rows: int) -> int:
        """Make room for that many more, and return the number of entries this takes; raise MemoryError without room."""
        needed = len(self) + max(0, rows - int(self._numbers[FREED]))
        if needed > MOST:
            raise MemoryError(f"{MOST} rows")
        self.memory.grow(needed)
        return needed

    def make(self, ids: np.ndarray) -> np.ndarray:
        """Return new rows for ids, int64 (n,), for which there is room; they have no place in the order yet."""
        rows = np.empty(ids.size, np.int64)
        make(self.memory.array, self._numbers, ids, rows)
        return rows

    def use(self, rows: np.ndarray, update: int) -> None:
        """Note that an update has used rows."""
        self._sort()
        use(self.memory.array, rows, update)

    def append(self, rows: np.ndarray, used: np.ndarray, counts: np.ndarray) -> None:
        """Give new rows their last use and count; those of the same update have the order in which they are given."""
        last = self.memory.array[0]["before"]
        append(self.memory.array, rows, used, counts)
        before = self.memory.array["used"][last] if last else 0
        self._sorted = self._sorted and bool((np.diff(used, prepend=before) >= 0).all())

    def evict(self, most: int, before: int) -> np.ndarray:
        """Remove the oldest rows, `most` and all whose last use was before an update; return their ids."""
        self._sort()
        count = oldest(self.memory.array, most, before)
        ids = np.empty(count, np.int64)
        if count:
            evict(self.memory.array, self._numbers, ids)
        return ids

    def since(self, update: int) -> np.ndarray:
        """Return the rows that later updates have used, in the order of use, the oldest first."""
        self._sort()
        return self._newest(update)

    def _newest(self, update: int) -> np.ndarray:
        rows = np.empty(newest(self.memory.array, update), np.int64)
        fill(self.memory.array, rows)
        return rows

    def _sort(self) -> None:
        """Order rows that have been appended."""
        if self._sorted:
            return
        rows = self._newest(-1)
        used, counts = (self.memory.array[name][rows].astype(np.int64) for name in ("used", "count"))
        order = np.argsort(used, kind="stable")
        self.memory.array[0]["before"] = self.memory.array[0]["after"] = 0
        append(self.memory.array, rows[order], used[order], counts[order])
        self._sorted = True

    def load(self, other: Entries) -> None:
        """Take over another's entries."""
        self.memory.grow(len(other))
        self.memory.array[: len(other)] = other.memory.array[: len(other)]
        self._numbers[:], self._sorted = other._numbers, other._sorted


@jit
def make(entries: Any, numbers: Any, ids: Any, rows: Any) -> None:
    for i in range(ids.size):
        row = numbers[FREE]
        if row:
            numbers[FREE] = entries[row].after
            numbers[FREED] -= 1
        else:
            row = numbers[USED]
            numbers[USED] += 1
        entry = entries[row]
        # Linked to itself alone, so that it can be unlinked as any other.
        entry.id, entry.count, entry.before, entry.after = ids[i], 0, row, row
        rows[i] = row


@jit
def link(entries: Any, row: int) -> None:
    """Make a row the newest one."""
    newest = entries[0].before
    entries[row].before, entries[row].after = newest, 0
    entries[newest].after = entries[0].before = row


@jit
def use(entries: Any, rows: Any, update: int) -> None:
    for i in range(rows.size + 2 * AHEAD):
        if i < rows.size:
            prefetch(entries, rows[i])
        j = i - AHEAD
        if 0 <= j < rows.size:
            prefetch(entries, entries[rows[j]].before)
            prefetch(entries, entries[rows[j]].after)
        k = j - AHEAD
        if k >= 0:
            entry = entries[rows[k]]
            entries[entry.before].after, entries[entry.after].before = entry.after, entry.before
            link(entries, rows[k])
            entry.used = update
            entry.count = min(entry.count + 1, 0xFFFFFFFF)


@jit
def append(entries: Any, rows: Any, used: Any, counts: Any) -> None:
    for i in range(rows.size):
        link(entries, rows[i])
        entries[rows[i]].used, entries[rows[i]].count = used[i], counts[i]


@jit
def oldest(entries: Any, most: int, before: int) -> int:
    """Return how many of the oldest rows are among the first `most` or were used before an update."""
    row, found = entries[0].after, 0
    while row and (found < most or entries[row].used < before):
        found += 1
        row = entries[row].after
    return found


@jit
def evict(entries: Any, numbers: Any, ids: Any) -> None:
    """Make the oldest rows free, and write their ids: they are linked already."""
    first = row = entries[0].after
    for i in range(ids.size):
        last = row
        ids[i] = entries[row].id
        row = entries[row].after
    entries[0].after, entries[row].before = row, 0
    entries[last].after = numbers[FREE]
    numbers[FREE] = first
    numbers[FREED] += ids.size


@jit
def newest(entries: Any, update: int) -> int:
    """Return how many rows were used after an update."""
    row, found = entries[0].before, 0
    while row and entries[row].used > update:
        found += 1
        row = entries[row].before
    return found


@jit
def fill(entries: Any, rows: Any) -> None:
    row = entries[0].before
    for i in range(rows.size - 1, -1, -1):
        rows[i] = row
        row = entries[row].before
