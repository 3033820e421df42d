"""Operations on matrices, their rows, and bags of rows; products are by NumPy's BLAS.

Bag i has the rows ``places[ends[i - 1]:ends[i]]`` of a matrix; that of an empty bag is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit


def matmul(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """Set `out` to the product of two matrices or of pairs of matrices, or add the product to `out`.

    Parameters
    ----------
    a : array (n, k) or (pairs, n, k)
    b : array (k, m) or (pairs, k, m)
        Same dtype. Rows or columns of each matrix are contiguous.
    out : array (n, m) or (pairs, n, m)
        Its rows are contiguous.
    add : bool
        Whether the product is added to `out`.
    """
    if add:
        np.add(out, np.matmul(a, b), out=out)
    else:
        np.matmul(a, b, out=out)


@jit
def add_row(matrix, row):  # type: ignore[no-untyped-def]
    """Add a row (m,) to each row of a matrix (n, m), in place."""
    n, m = matrix.shape
    for i in range(n):
        for j in range(m):
            matrix[i, j] += row[j]


@jit
def sum_rows(matrix, row):  # type: ignore[no-untyped-def]
    """Overwrite a row (m,) with the sum of the rows of a matrix (n, m)."""
    n, m = matrix.shape
    total = np.zeros(m, np.float64)
    for i in range(n):
        for j in range(m):
            total[j] += matrix[i, j]
    for j in range(m):
        row[j] = total[j]


@jit
def take_rows(matrix, ids, outputs):  # type: ignore[no-untyped-def]
    """Overwrite row i of `outputs` (n, m) with row ids[i] of `matrix`."""
    for i in range(ids.size):
        row = ids[i]
        for j in range(matrix.shape[1]):
            outputs[i, j] = matrix[row, j]


@jit
def take_columns(matrix, places, outputs):  # type: ignore[no-untyped-def]
    """Overwrite column j of `outputs` (n, m) with column places[j] of `matrix`."""
    for i in range(matrix.shape[0]):
        for j in range(places.size):
            outputs[i, j] = matrix[i, places[j]]


@jit
def add_to_rows(matrix, ids, rows):  # type: ignore[no-untyped-def]
    """Add row i of `rows` (n, m) to row ids[i] of `matrix`."""
    for i in range(ids.size):
        row = ids[i]
        for j in range(matrix.shape[1]):
            matrix[row, j] += rows[i, j]


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
