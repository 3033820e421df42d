"""What every wire format offers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


class Wire:
    """A wire format: encodes a chunk of a push into a number of bytes that its length decides.

    Attributes
    ----------
    name : str
        As a configuration has it, such as "topk:0.01".
    """

    name: str

    def size(self, elements: int, dtype: Any) -> int:
        """Return the bytes of a chunk of so many elements of a dtype, a multiple of 8."""
        raise NotImplementedError

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """Encode values + residual; the residual becomes what the encoding leaves out.

        Parameters
        ----------
        values : array (n,), float32 or float64
        residual : array (n,) of the same dtype
            Changed.
        out : array of uint8, at least (size(n),)
            Contiguous, aligned to 8 bytes.
        """
        raise NotImplementedError

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """Write into `values` (n,) what the bytes `data` stand for."""
        raise NotImplementedError

    def warm(self, dtype: Any) -> None:
        """Compile for a dtype, or load from the cache, ahead of the first chunk."""
        values = np.ones(1, dtype)
        data = np.zeros(self.size(1, dtype), np.uint8)
        self.encode(values, np.zeros_like(values), data)
        self.decode(data, values)


@cache
def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a format's loop compiled; Numba is imported only when the first one is needed."""
    from mpidl.jit import jit

    return jit(loop)
