"""The compiled loops over a table's rows: first values, reading, and the way to an update and back."""

from __future__ import annotations

from math import cos, log, pi, sqrt
from typing import Any

import numpy as np

from mpidl.jit import jit
from mpidl.tables.prefetch import prefetch

#: Rows that are read ahead.
AHEAD = 64


@jit
def mixed(number: Any) -> Any:
    """Return a hash of a 64-bit number, as `mpidl.tables.index.mixed`: Numba's cache misses changes in other files."""
    found = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


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
    """Write the first values of the ids without a row into `found`, (ids, dimension)."""
    for i in range(ids.size):
        if rows[i] < 0:
            initialise(seed, ids[i], normal, scale, found[i])


@jit
def read(values: Any, flat: Any, rows: Any, found: Any) -> None:
    """Write rows into `found`, (rows, dimension); row -1 leaves anything there."""
    width, dimension = values.shape[1], found.shape[1]
    for start in range(0, rows.size, AHEAD):
        stop = min(start + AHEAD, rows.size)
        for i in range(start, stop):
            prefetch(flat, max(rows[i], 0) * width)
        for i in range(start, stop):
            row = max(rows[i], 0)
            for j in range(dimension):
                found[i, j] = values[row, j]


@jit
def gather(values: Any, flat: Any, rows: Any, block: Any) -> None:
    """Copy rows with their states into `block`, (1 + states, rows, dimension)."""
    width, dimension = values.shape[1], block.shape[2]
    for start in range(0, rows.size, AHEAD):
        stop = min(start + AHEAD, rows.size)
        for i in range(start, stop):
            for place in range(0, width, 16):
                prefetch(flat, rows[i] * width + place)
        for i in range(start, stop):
            for part in range(block.shape[0]):
                for j in range(dimension):
                    block[part, i, j] = values[rows[i], part * dimension + j]


@jit
def scatter(values: Any, rows: Any, block: Any) -> None:
    """Copy `block` back."""
    dimension = block.shape[2]
    for i in range(rows.size):
        for part in range(block.shape[0]):
            for j in range(dimension):
                values[rows[i], part * dimension + j] = block[part, i, j]


@jit
def note(entries: Any, rows: Any, update: int) -> None:
    """Note that an update has used rows."""
    for i in range(rows.size):
        entry = entries[rows[i]]
        entry.used = update
        entry.count += 1
