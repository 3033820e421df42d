"""Loops over bags of rows: their sum, mean and maximum, and the gradients of these.

Bag i has the rows ``places[ends[i - 1]:ends[i]]`` of a matrix; that of an empty bag is zero.
"""

from __future__ import annotations

from typing import Any

from mpidl.jit import jit


@jit
def add_up(matrix: Any, places: Any, ends: Any, mean: bool, outputs: Any) -> None:
    """Overwrite each row of `outputs` (bags, m) with the sum, or the mean, of the rows of its bag."""
    start = 0
    for i in range(ends.size):
        outputs[i] = 0
        for n in range(start, ends[i]):
            row = places[n]
            for j in range(matrix.shape[1]):
                outputs[i, j] += matrix[row, j]
        if mean and ends[i] > start:
            for j in range(matrix.shape[1]):
                outputs[i, j] /= ends[i] - start
        start = ends[i]


@jit
def backprop_add_up(gradient: Any, places: Any, ends: Any, mean: bool, rows: Any) -> None:
    """Add the gradients of the sums or means, (bags, m), to those of the matrix's `rows`."""
    start = 0
    for i in range(ends.size):
        for n in range(start, ends[i]):
            row = places[n]
            for j in range(rows.shape[1]):
                rows[row, j] += gradient[i, j] / (ends[i] - start) if mean else gradient[i, j]
        start = ends[i]


@jit
def maximise(matrix: Any, places: Any, ends: Any, outputs: Any, largest: Any) -> None:
    """Overwrite `outputs` (bags, m) with the maxima of bags, and `largest` with the row of the first of each, or -1."""
    start = 0
    for i in range(ends.size):
        outputs[i], largest[i] = 0, -1
        for n in range(start, ends[i]):
            row = places[n]
            for j in range(matrix.shape[1]):
                if n == start or matrix[row, j] > outputs[i, j]:
                    outputs[i, j], largest[i, j] = matrix[row, j], row
        start = ends[i]


@jit
def backprop_maximise(gradient: Any, largest: Any, rows: Any) -> None:
    """Add the gradients of the maxima, (bags, m), to those of the matrix's `rows`."""
    for i in range(largest.shape[0]):
        for j in range(rows.shape[1]):
            if largest[i, j] >= 0:
                rows[largest[i, j], j] += gradient[i, j]
