"""Products of matrices."""

from __future__ import annotations

from typing import Any


def multiply(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """See `mpidl.nn.kernels.cpu.products.multiply`."""
    import cupy

    if add:
        out += cupy.matmul(a, b)
    else:
        cupy.matmul(a, b, out=out)
