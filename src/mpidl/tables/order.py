"""The order in which rows have been used, as a list that is linked both ways."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit
from mpidl.tables.memory import reserved


class Order:
    """The order of use of up to `capacity` rows."""

    def __init__(self, capacity: int) -> None:
        # 1 + the row that was used before, and after; 0 for none. Row `capacity` is before the oldest and after the
        # newest.
        self._links = reserved((capacity + 1, 2), np.int32)
        self._links[capacity] = capacity + 1

    def use(self, rows: np.ndarray, new: np.ndarray) -> None:
        """Note the use of rows, int64 (n,), some of which are new, bool (n,)."""
        use(self._links, rows, new)

    def oldest(self, most: int) -> np.ndarray:
        """Return up to `most` rows whose use is the longest ago, the oldest first."""
        rows = np.empty(most, np.int64)
        return rows[: oldest(self._links, rows)]

    def remove(self, rows: np.ndarray) -> None:
        """Remove rows."""
        remove(self._links, rows)


@jit
def use(links: Any, rows: Any, new: Any) -> None:
    end = links.shape[0] - 1
    for i in range(rows.size):
        row = rows[i]
        if not new[i]:
            unlink(links, row)
        newest = links[end, 0] - 1
        links[row, 0], links[row, 1] = newest + 1, end + 1
        links[newest, 1] = links[end, 0] = row + 1


@jit
def unlink(links: Any, row: int) -> None:
    before, after = links[row, 0] - 1, links[row, 1] - 1
    links[before, 1], links[after, 0] = after + 1, before + 1


@jit
def oldest(links: Any, rows: Any) -> int:
    end = links.shape[0] - 1
    row, found = links[end, 1] - 1, 0
    while row != end and found < rows.size:
        rows[found] = row
        found += 1
        row = links[row, 1] - 1
    return found


@jit
def remove(links: Any, rows: Any) -> None:
    for i in range(rows.size):
        unlink(links, rows[i])
