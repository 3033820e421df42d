"""Loops over activations that no array package has fused: for NumPy arrays and, under the same names, for CuPy's."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np


@cache
def of(xp: Any) -> Any:
    """Return the module of the loops for the arrays of `xp`, NumPy or CuPy."""
    return import_module(f"mpidl.nn.kernels.{'cpu' if xp is np else 'cuda'}")
