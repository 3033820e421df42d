"""First values of a table's rows."""

from __future__ import annotations

import numpy as np
import xxhash

from mpidl.tables import rows as loops
from mpidl.tables.lookups import TableSpec


class FirstValues:
    """The values of rows before their first update: a function of the seed, the table's name and the id.

    Attributes
    ----------
    seed : uint64
        Made of the seed and the name.
    """

    def __init__(self, spec: TableSpec, seed: int) -> None:
        self.seed = np.uint64(xxhash.xxh64_intdigest(spec.name.encode(), seed))
        self._normal, self._scale, self._dimension = bool(spec.normal), float(spec.scale), spec.dimension

    def write(self, ids: np.ndarray, rows: np.ndarray, found: np.ndarray) -> None:
        """Write those of the ids, int64 (n,), whose row is 0 into `found`, (n, dimension)."""
        loops.begin(self.seed, ids, rows, self._normal, self._scale, found)

    def start(self, ids: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """Begin the rows of ids in `values`, (rows, (1 + states) * dimension): first values, and states of zeros."""
        loops.start(self.seed, ids, rows, self._normal, self._scale, self._dimension, values)
