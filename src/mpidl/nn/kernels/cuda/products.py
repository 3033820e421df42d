"""Products of matrices, by cuBLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

#: The factors 0 and 1 of a product and of earlier contents, and their addresses in the host's memory.
FACTORS = {dtype: np.array([0, 1], dtype) for dtype in "fd"}
ADDRESSES = {dtype: (each.ctypes.data, each.ctypes.data + each.itemsize) for dtype, each in FACTORS.items()}


def matmul(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """Multiply matrices as `mpidl.nn.kernels.cpu.matrices.matmul` does, without copying any of them."""
    import cupy

    if not out.size:
        return
    *pairs, n, m = out.shape
    cublas, dtype = cupy.cuda.cublas, out.dtype.char
    product = cublas.sgemmStridedBatched if dtype == "f" else cublas.dgemmStridedBatched
    zero, one = ADDRESSES[dtype]
    (how_a, *place_a), (how_b, *place_b), (how, *place) = (_storage(each) for each in (a, b, out))
    assert how == 0
    # Columns are contiguous in cuBLAS, so it computes the transpose of the product.
    product(
        cupy.cuda.device.get_cublas_handle(), how_b, how_a, m, n, a.shape[-1],
        one, *place_b, *place_a, one if add else zero, *place, *(pairs or (1,)),
    )  # fmt: skip


def _storage(matrices: Any) -> tuple[int, int, int, int]:
    """Return 0 if rows are contiguous or 1 if columns are, the address, and the distances of these and of matrices."""
    size, (rows, columns), (down, across) = matrices.itemsize, matrices.shape[-2:], matrices.strides[-2:]
    step = matrices.strides[0] // size if matrices.ndim == 3 else 0
    if across == size or columns == 1:
        return 0, matrices.data.ptr, max(1, columns, down // size if rows > 1 else 1), step
    return 1, matrices.data.ptr, max(1, rows, across // size), step
