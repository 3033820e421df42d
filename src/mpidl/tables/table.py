"""A server's part of a table: rows by id, each with its rule's state; and which rows are left of older copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from mpidl.errors import MpidlError
from mpidl.rules import Rule
from mpidl.tables import rows as loops
from mpidl.tables.admission import admission as make_admission
from mpidl.tables.entries import Entries
from mpidl.tables.index import RowIndex
from mpidl.tables.lookups import TableSpec
from mpidl.tables.memory import Growing
from mpidl.tables.rows import InitialRows


class Table:
    """Rows by id, which are made at their first update.

    An update changes only the rows of its ids ("lazy"), also by momentum and Adam, which otherwise move all.

    Parameters
    ----------
    spec : TableSpec
    rule : Rule
        Its states are kept beside each row.
    capacity : int, optional
        Most rows without `max_rows`; by default, as many as there is memory for.
    seed : int
        First values are a function of it, of the table's name and of the id.
    dtype : dtype
        float32 or float64.
    max_rows : int, optional
        Rows that are kept: beyond these, those whose last update is the longest ago are evicted.
    max_age : int, optional
        Updates after which a row that they didn't use is evicted.
    admission : float, optional
        Touches by updates after which an id gets a row, up to 255, or a probability below 1 that a touch has this
        effect. Before, the id has its first values, and gradients don't change them.

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
        capacity: int | None = None,
        seed: int = 0,
        dtype: Any = np.float32,
        max_rows: int | None = None,
        max_age: int | None = None,
        admission: float | None = None,
    ) -> None:
        self.spec, self.rule, self.dtype = spec, rule, np.dtype(dtype)
        self.step = self.new = self.admitted = self.evicted = 0
        self._capacity, self._seed = capacity, seed
        self._max_rows, self._max_age, self._needed = max_rows, max_age, admission
        self._first = InitialRows(spec, seed)
        self._update = loops.update(type(rule), spec.dimension)  # type: ignore[arg-type]
        # Rows are read as words of 8 bytes if they consist of these.
        self._words = self.dtype if spec.dimension * self.dtype.itemsize % 8 else np.dtype(np.uint64)
        self._clear()

    def _clear(self) -> None:
        """Take memory of the table's own, without rows."""
        spec, parts = self.spec, 1 + len(self.rule.states)
        needed = self._needed
        self._admission = None if needed is None else make_admission(needed, self._first.seed, self._max_rows)
        # Row 0 stands for none.
        self._values = Growing((parts * spec.dimension,), self.dtype)
        self._entries, self._index = Entries(), RowIndex()

    def __len__(self) -> int:
        return len(self._index)

    def warm(self) -> None:
        """Compile all loops, or load them from Numba's cache, before the first update."""
        trial = Table(self.spec, self.rule, dtype=self.dtype, max_rows=1)
        ids, gradients = np.arange(2), np.zeros((2, self.spec.dimension), self.dtype)
        for step in (1, 2):
            trial.update(ids, gradients, step)
        trial.read(ids, gradients)
        trial.restore({**trial.arrays(), "ids": ids[:1]})
        trial.finite()
        if self._needed is not None:
            make_admission(self._needed, self._first.seed, None).admit(ids, 1)

    def begin(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Make rows with these values (n, dimension), of no update yet, for those of distinct ids that have none."""
        rows = np.empty(ids.size, np.int64)
        self._index.find(ids, rows)
        new = np.flatnonzero(rows == 0)
        rows, never = self._make(ids[new]), np.zeros(new.size, np.int64)
        loops.write(self._values.array, rows, 0, np.ascontiguousarray(values[new], self.dtype))
        self._entries.append(rows, never, never)

    def read(self, ids: np.ndarray, found: np.ndarray) -> None:
        """Write the values of ids, int64 (n,), into an array (n, dimension): first values for those without a row."""
        rows = np.empty(ids.size, np.int64)
        self._index.read(ids, rows, self._values.array.view(self._words), found.view(self._words))
        self._first.write(ids, rows, found)

    def update(
        self, ids: np.ndarray, gradients: np.ndarray, step: int, rate: float | None = None, weight: float = 1.0
    ) -> None:
        """Apply the gradients (n, dimension) of distinct ids, int64 (n,), as one step of the rule.

        Parameters
        ----------
        ids, gradients : array
        step : int
            The number of the update among those of all servers, from 1.
        rate : float, optional
            Takes the place of the rule's own.
        weight : float
            That of the gradients, as in `mpidl.rules.Rule.update`.

        Raises
        ------
        MpidlError
            If there is no room for the new rows; no row has changed then.
        """
        self.step = step
        rows = np.empty(ids.size, np.int64)
        self._index.find(ids, rows)
        if np.count_nonzero(rows) < ids.size:
            rows, gradients = self._admit(ids, rows, gradients)
        coefficients = self.rule.coefficients(step, self.rule.rate if rate is None else rate, weight)
        self._update(self._values.array, rows, gradients, *coefficients)
        self._entries.use(rows, step)
        beyond = max(0, len(self) - self._max_rows) if self._max_rows is not None else 0
        oldest = max(0, step - self._max_age) if self._max_age is not None else 0
        if beyond or oldest:
            gone = self._entries.evict(beyond, oldest)
            self._index.remove(gone)
            self.evicted += gone.size

    def copy(self) -> Table:
        """Return a table in the same state, with memory of its own."""
        copied = copy(self)
        copied._clear()
        copied.load(self)
        return copied

    def load(self, other: Table) -> None:
        """Take over the state of another table with the same parameters."""
        rows = len(other._entries)
        self._values.grow(rows)
        self._entries.load(other._entries)
        self._index.load(other._index)
        self._values.array[:rows] = other._values.array[:rows]
        if self._admission is not None and other._admission is not None:
            self._admission.state[:] = other._admission.state
        self.step, self.new, self.admitted, self.evicted = other.step, other.new, other.admitted, other.evicted

    def arrays(self, since: int = -1) -> dict[str, np.ndarray]:
        """Return the state as arrays: the rows in the order of their last use, the oldest first.

        Parameters
        ----------
        since : int
            Only rows that later updates have used are returned, by default all; see `mpidl.tables.table.left` for the
            others. The last use of a row that no update has used is 0.

        Returns
        -------
        dict
            "ids", int64 (n,); "rows" (n, dimension); "state" (n, states * dimension); "uses", int64 (n, 2): the last
            update that used the row, and the number of these; "counts", int64 (5,): step, new, admitted, evicted, and
            the number of rows with those that aren't returned; "touches", uint8: the counts of an admission after
            touches.
        """
        rows = self._entries.since(since)
        entries, values = self._entries.memory.array[rows], self._values.array
        found = {
            "ids": entries["id"].copy(),
            "rows": np.empty((rows.size, self.spec.dimension), self.dtype),
            "state": np.empty((rows.size, values.shape[1] - self.spec.dimension), self.dtype),
            "uses": np.stack([entries["used"], entries["count"]], 1).astype(np.int64),
            "counts": np.array([self.step, self.new, self.admitted, self.evicted, len(self)], np.int64),
        }
        if self._admission is not None and self._admission.state.size:
            found["touches"] = self._admission.state.copy()
        loops.read(values, rows, 0, found["rows"])
        loops.read(values, rows, self.spec.dimension, found["state"])
        return found

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add rows of `arrays()`, whose ids have none.

        With all arrays of a table, an empty one continues as that one would. Rows of several calls are put in the order
        of their last use. "counts" may be left out, and "touches", too, which are used if they have the right size.
        """
        ids = np.ascontiguousarray(arrays["ids"])
        rows = self._make(ids)
        loops.write(self._values.array, rows, 0, arrays["rows"])
        loops.write(self._values.array, rows, self.spec.dimension, arrays["state"])
        used, counts = np.ascontiguousarray(arrays["uses"].T, np.int64)
        self._entries.append(rows, used, counts)
        if "counts" in arrays:
            self.step, self.new, self.admitted, self.evicted = arrays["counts"][:ROWS].tolist()
        touches = arrays.get("touches")
        if self._admission is not None and touches is not None and touches.size == self._admission.state.size:
            self._admission.state[:] = touches

    def finite(self, since: int = -1) -> bool:
        """Return whether all values and states are finite of the rows that updates later than `since` have used."""
        return bool(loops.finite(self._values.array, self._entries.since(since)))

    def _admit(self, ids: np.ndarray, rows: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Make rows of ids without one, and return the rows and the gradients of those that have one now."""
        absent = np.flatnonzero(rows == 0)
        self.new += absent.size
        if self._admission is not None:
            absent = absent[self._admission.admit(ids[absent], self.step)]
        rows[absent] = self._make(ids[absent])
        self.admitted += absent.size
        if self._admission is None:
            return rows, gradients
        kept = np.flatnonzero(rows)
        return rows[kept], gradients[kept]

    def _make(self, ids: np.ndarray) -> np.ndarray:
        """Return new rows of ids, with their first values."""
        if self._capacity is not None and self._max_rows is None and len(self) + ids.size > self._capacity:
            raise self._full()
        try:
            self._values.grow(self._entries.reserve(ids.size))
            self._index.reserve(ids.size)
        except MemoryError:
            raise self._full() from None
        rows = self._entries.make(ids)
        self._index.add(ids, rows)
        self._first.start(ids, rows, self._values.array)
        return rows

    def _full(self) -> MpidlError:
        return MpidlError(
            f"table {self.spec.name}: full with {len(self)} rows on this server; set max_rows or max_age, by which "
            "rows that aren't used are evicted, or more servers"
        )


#: Place in "counts" of the number of rows.
ROWS = 4


def left(ids: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
    """Return the places of the rows that a table still has, of a full copy and of what was used later, in order.

    Rows are evicted in the order of their last use. So of all rows in that order, each with its last use alone, the
    last ones are left.

    Parameters
    ----------
    ids : sequence of array
        The ids of `Table.arrays()`, and then those of `Table.arrays(since)` with the update of the copy before.
    rows : int
        Number of rows of the table, from the last "counts".
    """
    known, kept = RowIndex(), []
    for each in reversed(ids):
        found = np.empty(each.size, np.int64)
        known.find(each, found)
        places = np.flatnonzero(found == 0)[-rows:] if rows else np.empty(0, np.int64)
        known.add(each[places], np.ones(places.size, np.int64))
        kept.append(places)
        rows -= places.size
    return kept[::-1]
