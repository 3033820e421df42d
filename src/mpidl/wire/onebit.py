"""One bit an element: its sign, with two values for each block (Seide et al. 2014)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import Wire

#: Elements that share their two values; the paper takes a column of a weight matrix.
BLOCK = 1024


class OneBit(Wire):
    """Signs, and for each block of 1024 elements the means of its non-negative and of its negative ones."""

    name = "onebit"

    def size(self, elements: int, dtype: Any) -> int:
        """See `Wire.size`."""
        return self._means(elements) * np.dtype(dtype).itemsize + -(-elements // 64) * 8

    @staticmethod
    def _means(elements: int) -> int:
        """Return the number of values, an even one for each block."""
        return 2 * -(-elements // BLOCK)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """See `Wire.encode`."""
        from mpidl.wire import kernels

        end = self._means(values.size) * values.itemsize
        kernels.encode_onebit(values, residual, out[:end].view(values.dtype), out[end:], BLOCK)

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """See `Wire.decode`."""
        from mpidl.wire import kernels

        end = self._means(values.size) * values.itemsize
        kernels.decode_onebit(data[:end].view(values.dtype), data[end:], values, BLOCK)
