"""The base class of wire formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

#: Number of elements of the parameter vector that are encoded together.
BLOCK = 1024


class Wire:
    """A wire format: encodes a chunk of a push into bytes, whose number depends only on the chunk's length.

    Attributes
    ----------
    name : str
        Name in a configuration, such as "topk:0.01".
    block : int
        Number of consecutive elements that are encoded together. Shards begin at multiples of it, so that what arrives
        doesn't depend on the number of servers.
    rows : int
        1 where the values of a chunk have shape (n,), 2 where they have shape (2, n).
    lossless : bool
        Whether what arrives is always what was sent.
    """

    name: str
    block: int = 1
    rows: int = 1
    lossless: bool = False

    def size(self, elements: int, dtype: Any) -> int:
        """Return the number of bytes of an encoded chunk, a multiple of 8."""
        raise NotImplementedError

    def shape(self, elements: int) -> tuple[int, ...]:
        """Return the shape of the values of a chunk."""
        return (elements,) if self.rows == 1 else (self.rows, elements)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """Encode values + residual, and set the residual to what the encoding leaves out.

        Parameters
        ----------
        values : array (n,) or (rows, n), float32 or float64
        residual : array (n,) of the same dtype
            Overwritten.
        out : array of uint8, at least (size(n, dtype),)
            Contiguous, aligned to 8 bytes.
        """
        raise NotImplementedError

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """Decode `data`, an array of uint8 as `encode` writes it, into `values`, (n,) or (rows, n)."""
        raise NotImplementedError

    def warm(self, dtype: Any) -> None:
        """Compile for a dtype, or load from Numba's cache, before the first chunk."""
        values = np.ones(self.shape(1), dtype)
        data = np.zeros(self.size(1, dtype), np.uint8)
        self.encode(values, np.zeros(1, dtype), data)
        self.decode(data, values)


def plain_bytes(elements: int, dtype: Any) -> int:
    """Return the number of bytes of elements that travel as they are, a multiple of 8."""
    itemsize: int = np.dtype(dtype).itemsize
    return -(-elements * itemsize // 8) * 8


@cache
def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a format's loop compiled; Numba is imported at the first call only."""
    from mpidl.jit import jit

    return jit(loop)
