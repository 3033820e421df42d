"""The largest elements only (Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import Wire


class TopK(Wire):
    """Of each chunk, the fraction of its elements that is largest in magnitude: their values and where they are.

    Parameters
    ----------
    fraction : float
        Of the elements; at least one is sent. 1 sends all, exactly.
    """

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self.name = f"topk:{fraction:g}"
        self._candidates = np.empty(0, np.uint32)

    def count(self, elements: int) -> int:
        """Return how many of a chunk's elements are sent."""
        return max(1, int(self.fraction * elements + 0.5))

    def size(self, elements: int, dtype: Any) -> int:
        """See `Wire.size`."""
        return -(-self.count(elements) * (4 + np.dtype(dtype).itemsize) // 8) * 8

    def _parts(self, data: np.ndarray, elements: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        count = self.count(elements)
        end = count * np.dtype(dtype).itemsize
        return data[:end].view(dtype), data[end : end + 4 * count].view(np.uint32)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """See `Wire.encode`."""
        from mpidl.wire import kernels

        if self._candidates.size < values.size:
            self._candidates = np.empty(values.size, np.uint32)
        residual += values
        bits = residual.view(np.uint32 if residual.itemsize == 4 else np.uint64)
        sent, indices = self._parts(out, values.size, values.dtype)
        kernels.encode_topk(residual, bits, self._candidates, sent, indices)

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """See `Wire.decode`."""
        sent, indices = self._parts(data, values.size, values.dtype)
        values.fill(0)
        values[indices] = sent
