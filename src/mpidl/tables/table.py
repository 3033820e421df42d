"""A server's part of a table: rows by id, each with its rule's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.errors import MpidlError
from mpidl.rules import Rule
from mpidl.tables import rows as loops
from mpidl.tables.first import FirstValues
from mpidl.tables.index import Index
from mpidl.tables.lookups import TableSpec
from mpidl.tables.memory import reserved
from mpidl.tables.order import Order

#: What is known of a row, beside its values: its id, the last update that used it, and the number of updates.
ENTRY = np.dtype([("id", np.int64), ("used", np.uint32), ("count", np.uint32)], align=True)
#: Rows that are updated together: they stay in the cache between reading and writing.
BLOCK = 1024


class Table:
    """Rows by id, which are made at their first update.

    An update changes the rows of its ids alone, also by rules with momentum, which would move others too.

    Parameters
    ----------
    spec : TableSpec
    rule : Rule
        Its states are kept beside each row.
    capacity : int
        Most rows. Address space is reserved for them; memory is taken as rows are added.
    seed : int
        First values are a function of it, of the table's name and of the id.
    dtype : dtype
        float32 or float64.
    max_rows : int, optional
        Rows that are kept: beyond these, those whose last update is the longest ago are evicted.
    max_age : int, optional
        Updates of the table after which a row that they didn't use is evicted.

    Attributes
    ----------
    step : int
        Number of the last update.
    new, admitted, evicted : int
        Number of times that an update had an id without a row, that such an id got one, and that a row was evicted.
    """

    def __init__(
        self,
        spec: TableSpec,
        rule: Rule,
        *,
        capacity: int,
        seed: int = 0,
        dtype: Any = np.float32,
        max_rows: int | None = None,
        max_age: int | None = None,
        admission: float | None = None,
    ) -> None:
        self.spec, self.rule, self.dtype = spec, rule, np.dtype(dtype)
        self.step = self.new = self.admitted = self.evicted = 0
        self._settings = {"capacity": capacity, "seed": seed, "dtype": dtype, "max_rows": max_rows, "max_age": max_age}
        self._settings["admission"] = admission
        self._max_rows, self._max_age = max_rows, max_age
        self._capacity, self._used = capacity, 0
        self._values = reserved((capacity, (1 + len(rule.states)) * spec.dimension), dtype)
        self._flat = self._values.reshape(-1)
        self._entries, self._index = reserved(capacity, ENTRY), Index(capacity)
        self._order = None if max_rows is None and max_age is None else Order(capacity)
        self._free: list[np.ndarray] = []
        self._first = FirstValues(spec, seed)
        self._block = np.empty((1 + len(rule.states), BLOCK, spec.dimension), dtype)

    def __len__(self) -> int:
        return len(self._index)

    def read(self, ids: np.ndarray, found: np.ndarray) -> None:
        """Write the values of ids, int64 (n,), into an array (n, dimension): first values for those without a row."""
        rows = self._find(ids)
        if len(self):
            loops.read(self._values, self._flat, rows, found)
        self._first.write(ids, found, rows)

    def update(self, ids: np.ndarray, gradients: np.ndarray, step: int, rate: float | None = None) -> None:
        """Apply the gradients (n, dimension) of distinct ids, int64 (n,), as one step of the rule.

        Parameters
        ----------
        ids, gradients : array
        step : int
            The number of the update among those of all servers, from 1.
        rate : float, optional
            Takes the place of the rule's own.

        Raises
        ------
        MpidlError
            If there is no room for a new row.
        """
        self.step = step
        for start in range(0, ids.size, BLOCK):
            self._update(ids[start : start + BLOCK], gradients[start : start + BLOCK], rate)
        if self._order is not None:
            self._evict()

    def copy(self) -> Table:
        """Return a table in the same state, with memory of its own."""
        copied = Table(self.spec, self.rule, **self._settings)
        copied.load(self)
        return copied

    def load(self, other: Table) -> None:
        """Take over the state of another table, of which this one was a copy."""
        self.__init__(self.spec, self.rule, **self._settings)  # type: ignore[misc]
        self.restore(other.arrays())

    def arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """Return the state as arrays: the rows in the order of their last use, the oldest first, and counts.

        Parameters
        ----------
        since : int
            Only rows that later updates have used are returned.

        Returns
        -------
        dict
            "ids", int64 (n,); "rows" (n, dimension); "state" (n, states * dimension); "uses", int64 (n, 2): the last
            update that used the row, and how many did; "counts", int64 (5,): step, new, admitted, evicted, and the
            number of rows, of which these may be a part.
        """
        rows = np.arange(self._used) if self._order is None else self._order.oldest(len(self))
        rows = rows[self._entries["used"][rows] > since] if since else rows
        entries, values = self._entries[rows], self._values[rows]
        return {
            "ids": entries["id"].copy(),
            "rows": values[:, : self.spec.dimension].copy(),
            "state": values[:, self.spec.dimension :].copy(),
            "uses": np.stack([entries["used"], entries["count"]], 1).astype(np.int64),
            "counts": np.array([self.step, self.new, self.admitted, self.evicted, len(self)], np.int64),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add rows of `arrays()` whose ids have none."""
        ids = np.ascontiguousarray(arrays["ids"])
        rows = self._room(ids.size)
        self._index.add(ids, rows)
        self._values[rows, : self.spec.dimension] = arrays["rows"]
        self._values[rows, self.spec.dimension :] = arrays["state"]
        self._entries["id"][rows] = ids
        self._entries["used"][rows], self._entries["count"][rows] = arrays["uses"].T
        if self._order is not None:
            self._order.use(rows, np.full(rows.size, True))
        self.step, self.new, self.admitted, self.evicted = arrays["counts"][:4].tolist()

    def finite(self) -> bool:
        """Return whether all values of all rows are finite."""
        return bool(np.isfinite(self._values[: self._used]).all())

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
        self.rule.update(parameters, tuple(states), gradients.reshape(-1), self.step, rate)
        loops.scatter(self._values, rows, block)
        loops.note(self._entries, rows, self.step)
        if self._order is not None:
            self._order.use(rows, new)

    def _add(self, ids: np.ndarray, rows: np.ndarray, new: np.ndarray) -> None:
        """Add ids, and write the rows of those that are `new`."""
        own = self._room(ids.size)
        rows[new] = own
        self._index.add(ids, own)
        self._entries["id"][own], self._entries["count"][own] = ids, 0
        first = np.zeros((ids.size, self._values.shape[1]), self._values.dtype)
        self._first.write(ids, first[:, : self.spec.dimension])
        self._values[own] = first
        self.new += ids.size
        self.admitted += ids.size

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
                f"table {self.spec.name}: full with {len(self)} rows on this server; set max_rows or max_age, by which "
                "rows that aren't used are evicted, or more servers"
            )
        parts.append(np.arange(self._used, self._used + count))
        self._used += count
        return np.concatenate(parts)

    def _evict(self) -> None:
        """Evict the rows that are too many, and those that are too old."""
        assert self._order is not None
        beyond = max(0, len(self) - self._max_rows) if self._max_rows is not None else 0
        rows = self._order.oldest(len(self) if self._max_age is not None else beyond)
        if self._max_age is not None:
            old = self._entries["used"][rows] < max(0, self.step - self._max_age)
            rows = rows[old | (np.arange(rows.size) < beyond)]
        if not rows.size:
            return
        self._order.remove(rows)
        self._index.remove(self._entries["id"][rows])
        self._free.append(rows.copy())
        self.evicted += rows.size
