"""Fused loops that array packages lack, under the same names for NumPy arrays and for CuPy's."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np


@cache
def of(xp: Any) -> Any:
    """Return the module with the kernels for arrays of `xp`, NumPy or CuPy."""
    return import_module(f"mpidl.nn.kernels.{'cpu' if xp is np else 'cuda'}")
