"""A server's part of a table: rows by id, each with its rule's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from mpidl.errors import MpidlError
from mpidl.rules import Rule
from mpidl.tables import rows as loops
from mpidl.tables.index import Index
from mpidl.tables.memory import reserved
from mpidl.tables.order import Order

#: What is known of a row, beside its values: its id, the last update that used it, and the number of updates.
ENTRY = np.dtype([("id", np.int64), ("used", np.int32), ("count", np.int32)], align=True)
#: Rows that are updated together: they stay in the cache between reading and writing.
BLOCK = 1024
#: Most rows that an update evicts beside those for which it needs the room.
EVICTED = 256


class Table:
    """Rows by id, which are made at their first update.

    Parameters
    ----------
    name : str
    dimension : int
        Length of a row.
    rule : Rule
        Its states are kept beside each row.
    capacity : int
        Most rows. Address space is reserved for them; memory is taken as rows are added.
    seed : int
    normal : bool
        Whether first values are drawn from a normal distribution, instead of a uniform one around 0.
    scale : float
        Standard deviation of that; or bound of the absolute values.
    max_rows : int, optional
        Rows that are kept: beyond these, those whose last update is the longest ago are evicted.
    max_age : int, optional
        Updates of the table after which a row that they didn't use is evicted.

    Attributes
    ----------
    updates : int
        Number of updates so far.
    added, evicted : int
        Number of rows that have been added and evicted.
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        rule: Rule,
        *,
        capacity: int,
        seed: int = 0,
        normal: bool = True,
        scale: float = 1.0,
        max_rows: int | None = None,
        max_age: int | None = None,
        dtype: Any = np.float32,
    ) -> None:
        self.name, self.dimension, self.rule = name, dimension, rule
        self.max_rows, self.max_age = max_rows, max_age
        self.updates = self.added = self.evicted = 0
        self._capacity, self._used = capacity, 0
        self._values = reserved((capacity, (1 + len(rule.states)) * dimension), dtype)
        self._flat = self._values.reshape(-1)
        self._entries, self._index = reserved(capacity, ENTRY), Index(capacity)
        self._order = None if max_rows is None and max_age is None else Order(capacity)
        self._free: list[np.ndarray] = []
        self._seed = np.uint64(xxhash.xxh64_intdigest(name.encode(), seed))
        self._first = bool(normal), float(scale)
        self._block = np.empty((1 + len(rule.states), BLOCK, dimension), dtype)

    def __len__(self) -> int:
        return len(self._index)

    def read(self, ids: np.ndarray, found: np.ndarray) -> None:
        """Write the values of ids, int64 (n,), into an array (n, dimension): first values for those without a row."""
        rows = self._find(ids)
        if len(self):
            loops.read(self._values, self._flat, rows, found)
        loops.begin(self._seed, ids, rows, *self._first, found)

    def update(self, ids: np.ndarray, gradients: np.ndarray, rate: float | None = None) -> None:
        """Apply the gradients (n, dimension) of distinct ids, int64 (n,), as one step of the rule.

        `rate` takes the place of the rule's own. Raise MpidlError if there is no room for a new row.
        """
        self.updates += 1
        for start in range(0, ids.size, BLOCK):
            self._update(ids[start : start + BLOCK], gradients[start : start + BLOCK], rate)
        if self._order is not None:
            self._evict(EVICTED)

    def _find(self, ids: np.ndarray) -> np.ndarray:
        rows = np.empty(ids.size, np.int64)
        self._index.find(ids, rows)
        return rows

    def _update(self, ids: np.ndarray, gradients: np.ndarray, rate: float | None) -> None:
        rows = self._find(ids)
        new = rows < 0
        if new.any():
            self._add(ids[new], rows, new)
        block = self._block[:, : ids.size]
        loops.gather(self._values, self._flat, rows, block)
        parameters, *states = (part.reshape(-1) for part in block)
        self.rule.update(parameters, tuple(states), gradients.reshape(-1), self.updates, rate)
        loops.scatter(self._values, rows, block)
        loops.note(self._entries, rows, self.updates)
        if self._order is not None:
            self._order.use(rows, new)

    def _add(self, ids: np.ndarray, rows: np.ndarray, new: np.ndarray) -> None:
        """Add ids, and write the rows of those that are `new`."""
        own = self._room(ids.size)
        rows[new] = own
        self._index.add(ids, own)
        self._entries["id"][own], self._entries["count"][own] = ids, 0
        first = np.zeros((ids.size, self._values.shape[1]), self._values.dtype)
        loops.begin(self._seed, ids, np.full(ids.size, -1), *self._first, first[:, : self.dimension])
        self._values[own] = first
        self.added += ids.size

    def _room(self, count: int) -> np.ndarray:
        """Return rows that are free."""
        parts = []
        while self._free and count:
            rows = self._free.pop()
            if rows.size > count:
                self._free.append(rows[count:])
            parts.append(rows[:count])
            count -= parts[-1].size
        if self._used + count > self._capacity:
            raise MpidlError(
                f"table {self.name}: full with {len(self)} rows on this server; set max_rows or max_age, by which rows "
                "that aren't used are evicted, or more servers"
            )
        parts.append(np.arange(self._used, self._used + count))
        self._used += count
        return np.concatenate(parts)

    def _evict(self, most: int) -> None:
        """Evict the rows that are too many, and up to `most` that are too old."""
        assert self._order is not None
        beyond = max(0, len(self) - self.max_rows) if self.max_rows is not None else 0
        rows = self._order.oldest(beyond + (most if self.max_age is not None else 0))
        if self.max_age is not None:
            old = self._entries["used"][rows] < self.updates - self.max_age
            rows = rows[old | (np.arange(rows.size) < beyond)]
        if not rows.size:
            return
        self._order.remove(rows)
        self._index.remove(self._entries["id"][rows])
        self._free.append(rows.copy())
        self.evicted += rows.size
