"""First values of a table's rows."""

from __future__ import annotations

import numpy as np
import xxhash

from mpidl.tables import rows as loops
from mpidl.tables.lookups import TableSpec


class FirstValues:
    """The values of rows before their first update: a function of the seed, the table's name and the id."""

    def __init__(self, spec: TableSpec, seed: int) -> None:
        self._seed = np.uint64(xxhash.xxh64_intdigest(spec.name.encode(), seed))
        self._normal, self._scale = bool(spec.normal), float(spec.scale)

    def write(self, ids: np.ndarray, values: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Write those of ids, int64 (n,), into `values`, (n, dimension); with `rows`, only where that is negative."""
        loops.begin(self._seed, ids, np.full(ids.size, -1) if rows is None else rows, self._normal, self._scale, values)
