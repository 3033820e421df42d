"""A row beside each row of a matrix; see `mpidl.nn.kernels.cpu.rows`."""

from __future__ import annotations

from typing import Any


def add_row(matrix: Any, row: Any) -> None:
    """See the CPU's."""
    matrix += row


def sum_rows(matrix: Any, row: Any) -> None:
    """See the CPU's. Sums are taken in the matrix's type, as a tree."""
    matrix.sum(axis=0, out=row)
