"""Fused loops that array packages lack, under the same names for NumPy arrays and for CuPy's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def of(xp: Any) -> Any:
    """Return the module with the kernels for arrays of `xp`, NumPy or CuPy; it is only imported where it is needed."""
    if xp is np:
        from mpidl.nn.kernels import cpu

        return cpu
    from mpidl.nn.kernels import cuda

    return cuda
