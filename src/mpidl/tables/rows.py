"""The initial values of a table's rows, and the compiled loops that read, write and update rows."""

from __future__ import annotations

from functools import cache
from math import cos, isfinite, log, pi, sqrt
from typing import Any

import numpy as np
import xxhash

from mpidl.jit import Compiled, jit
from mpidl.rules import Rule, scalar
from mpidl.tables.distinct import mixed
from mpidl.tables.lookups import TableSpec
from mpidl.tables.memory import prefetch

#: Rows that are read ahead.
AHEAD = 16
#: Bytes of a line of the cache.
LINE = 64


@jit
def initialise(seed: Any, id: Any, normal: bool, scale: float, values: Any) -> None:
    """Write the first values of a row: uniform in [-scale, scale), or normal with that standard deviation.

    Element j depends on the seed, the id and j alone. Normal ones are those of G. Box and M. Muller 1958.
    """
    base = mixed(np.uint64(seed) ^ mixed(id))
    for j in range(values.size):
        first = np.float64(mixed(base + np.uint64(2 * j)) >> np.uint64(11)) * 2.0**-53
        if normal:
            second = np.float64(mixed(base + np.uint64(2 * j + 1)) >> np.uint64(11)) * 2.0**-53
            values[j] = scale * sqrt(-2.0 * log(1.0 - first)) * cos(2.0 * pi * second)
        else:
            values[j] = scale * (2.0 * first - 1.0)


@jit
def begin(seed: Any, ids: Any, rows: Any, normal: bool, scale: float, found: Any) -> None:
    """Write the first values of the ids whose row is 0 into `found`, (ids, dimension)."""
    for i in range(ids.size):
        if not rows[i]:
            initialise(seed, ids[i], normal, scale, found[i])


@jit
def start(seed: Any, ids: Any, rows: Any, normal: bool, scale: float, dimension: int, values: Any) -> None:
    """Begin rows of `values`: first values, and states of zeros."""
    for i in range(ids.size):
        row = values[rows[i]]
        initialise(seed, ids[i], normal, scale, row[:dimension])
        for j in range(dimension, row.size):
            row[j] = 0


@jit
def read(values: Any, rows: Any, offset: int, found: Any) -> None:
    """Write columns of rows, from `offset` on, into `found`, (rows, columns)."""
    width, columns = values.shape[1], found.shape[1]
    for i in range(rows.size):
        prefetch(values, rows[min(i + AHEAD, rows.size - 1)] * width + offset)
        for j in range(columns):
            found[i, j] = values[np.uint64(rows[i]), offset + j]


@jit
def write(values: Any, rows: Any, offset: int, given: Any) -> None:
    """Write `given`, (rows, columns), into columns of rows, from `offset` on."""
    for i in range(rows.size):
        for j in range(given.shape[1]):
            values[rows[i], offset + j] = given[i, j]


@cache
def update(rule: type[Rule], dimension: int) -> Compiled:
    """Return the compiled loop that applies gradients to rows, each of them an element's values and states.

    Its arguments are the values, (rows, (1 + states) * dimension), the distinct numbers of rows, int64 (n,), their
    gradients (n, dimension), and the coefficients. With the dimension as a constant, rows are in vector registers.
    """
    form = scalar.read(rule)
    vectors, name = [form.element, *form.states], f"{rule.name}_rows_{dimension}"
    places = ", ".join(f"values[row, {part * dimension} + j]" for part in range(len(vectors)))
    lines = [
        f"def {name}(values, rows, {form.gradient}_rows, {', '.join(form.coefficients)}):",
        "    real, width, line = values.dtype.type, values.shape[1], LINE // values.itemsize",
        *(f"    {each} = real({each})" for each in form.coefficients),
        "    for i in range(rows.size):",
        "        ahead = rows[min(i + AHEAD, rows.size - 1)] * width",
        "        for place in range(0, width, line):",
        "            prefetch(values, ahead + place)",
        "        row = uint64(rows[i])",
        f"        for j in range({dimension}):",
        f"            {', '.join(vectors)}, {form.gradient} = {places}, {form.gradient}_rows[i, j]",
        *(f"            {each} = {scalar.typed(value)}" for each, value in form.assignments),
        f"            {places} = {', '.join(scalar.typed(result) for result in form.results)}",
    ]
    scope = {"sqrt": sqrt, "uint64": np.uint64, "prefetch": prefetch, "AHEAD": AHEAD, "LINE": LINE}
    return scalar.compiled_source(rule, name, "\n".join(lines), scope)


@jit
def finite(values: Any, rows: Any) -> bool:
    """Return whether all values of rows are finite."""
    for i in range(rows.size):
        for j in range(values.shape[1]):
            if not isfinite(values[rows[i], j]):
                return False
    return True


class InitialRows:
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
        begin(self.seed, ids, rows, self._normal, self._scale, found)

    def start(self, ids: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """Begin the rows of ids in `values`, (rows, (1 + states) * dimension): first values, and states of zeros."""
        start(self.seed, ids, rows, self._normal, self._scale, self._dimension, values)
