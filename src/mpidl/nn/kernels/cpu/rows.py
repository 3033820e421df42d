"""A row beside each row of a matrix."""

from __future__ import annotations

import numpy as np

from mpidl.jit import jit


@jit
def add_row(matrix, row):  # type: ignore[no-untyped-def]
    """Add a row (m,) to each row of a matrix (n, m), in place."""
    n, m = matrix.shape
    for i in range(n):
        for j in range(m):
            matrix[i, j] += row[j]


@jit
def sum_rows(matrix, row):  # type: ignore[no-untyped-def]
    """Overwrite a row (m,) by the sum of the rows of a matrix (n, m)."""
    n, m = matrix.shape
    total = np.zeros(m, np.float64)
    for i in range(n):
        for j in range(m):
            total[j] += matrix[i, j]
    for j in range(m):
        row[j] = total[j]
