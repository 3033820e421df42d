"""Operations on matrices and their rows; products are by NumPy's BLAS."""

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
