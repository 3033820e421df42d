"""Sources of rows in this process: first values, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpidl.tables.distinct import Distinct, distinct, owner
from mpidl.tables.lookups import Lookup, TableSpec, gathered
from mpidl.tables.rows import InitialRows
from mpidl.tables.table import Table


class FirstRows:
    """Tables that have never been updated: all ids have their first values. Gradients have no effect."""

    def __init__(self, specs: Sequence[TableSpec], seed: int, dtype: Any) -> None:
        self._dimensions = [spec.dimension for spec in specs]
        self._first = [InitialRows(spec, seed) for spec in specs]
        self._dtype = dtype

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        found = distinct(ids, 1)
        rows = np.empty((found.ids.size, self._dimensions[table]), self._dtype)
        self._first[table].write(found.ids, np.zeros(found.ids.size, np.int64), rows)
        return Lookup(rows, found)


class TablesInMemory:
    """Tables in this process.

    Parameters
    ----------
    tables : sequence of sequence of Table
        For each table of the model, the part of each server.
    """

    complete = True

    def __init__(self, tables: Sequence[Sequence[Table]]) -> None:
        self._tables = tables
        self._noted: list[list[Lookup]] = [[] for _ in tables]

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        servers = self._tables[table]
        found = distinct(ids, len(servers))
        rows = np.empty((found.ids.size, servers[0].spec.dimension), servers[0].dtype)
        for part, server in zip(found.parts, servers, strict=True):
            server.read(found.ids[part], rows[part])
        return Lookup(rows, found, self._noted[table])

    def stored(self, table: int, server: int, servers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids of a server that have rows in a table, and these."""
        for part in self._tables[table]:
            found = part.arrays()
            own = owner(found["ids"], servers) == server
            yield found["ids"][own], found["rows"][own]

    def take(self) -> dict[int, tuple[Distinct, np.ndarray]]:
        """Return the gradients of the lookups since the last call.

        For each table with gradients, by its number, the distinct ids, grouped by server, and the sums of their
        gradients, (distinct ids, dimension).
        """
        taken = {table: gathered(lookups) for table, lookups in enumerate(self._noted) if lookups}
        self._noted = [[] for _ in self._tables]
        return taken
