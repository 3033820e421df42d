"""Operations on the rows of matrices; see `mpidl.nn.kernels.cpu.rows`."""

from __future__ import annotations

from typing import Any

from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("rows")


def add_row(matrix: Any, row: Any) -> None:
    """See the CPU's."""
    matrix += row


def sum_rows(matrix: Any, row: Any) -> None:
    """See the CPU's. Sums are computed as a tree, in the matrix's dtype."""
    matrix.sum(axis=0, out=row)


def take_rows(matrix: Any, ids: Any, outputs: Any) -> None:
    """See the CPU's."""
    MODULE.launch("take_rows", outputs.size, matrix, ids, outputs, matrix.shape[1])


def add_to_rows(matrix: Any, ids: Any, rows: Any) -> None:
    """See the CPU's."""
    MODULE.launch("add_to_rows", matrix.size, matrix, ids, rows, matrix.shape[1], ids.size)
