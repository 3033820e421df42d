"""Operations on the rows of matrices; see `mpidl.nn.kernels.cpu.rows`."""

from __future__ import annotations

from typing import Any

from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("rows")
#: Rows that one thread sums.
LENGTH = 64


def add_row(matrix: Any, row: Any) -> None:
    """See the CPU's."""
    matrix += row


def sum_rows(matrix: Any, row: Any) -> None:
    """See the CPU's. Sums are computed as a tree, in the matrix's dtype."""
    import cupy

    rows, columns = matrix.shape
    while rows > LENGTH:
        count = -(-rows // LENGTH)
        sums = cupy.empty((count, columns), matrix.dtype)
        MODULE.launch("sum_rows", sums.size, matrix, sums, rows, columns, LENGTH)
        matrix, rows = sums, count
    MODULE.launch("sum_rows", columns, matrix, row, rows, columns, LENGTH)


def take_rows(matrix: Any, ids: Any, outputs: Any) -> None:
    """See the CPU's."""
    MODULE.launch("take_rows", outputs.size, matrix, ids, outputs, matrix.shape[1])


def add_to_rows(matrix: Any, ids: Any, rows: Any) -> None:
    """See the CPU's."""
    MODULE.launch("add_to_rows", matrix.size, matrix, ids, rows, matrix.shape[1], ids.size)
