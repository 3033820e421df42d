"""Pushes that bring the parameters that they were computed at."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import Wire, plain_bytes


class WithOrigin(Wire):
    """A vector in another format, and beside it the parameters that it was computed at, as they are.

    Parameters
    ----------
    wire : Wire or None
        The vector's format. None: as it is.
    """

    rows = 2

    def __init__(self, wire: Wire | None) -> None:
        self._wire, self.lossless = wire, wire is None
        self.name, self.block = ("fp32", 1) if wire is None else (wire.name, wire.block)

    def size(self, elements: int, dtype: Any) -> int:
        return self._end(elements, dtype) + plain_bytes(elements, dtype)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """See `Wire.encode`; the residual is the vector's."""
        vector, origin = values
        end = self._end(vector.size, vector.dtype)
        if self._wire is None:
            out[: vector.nbytes].view(vector.dtype)[:] = vector
        else:
            self._wire.encode(vector, residual, out[:end])
        out[end : end + origin.nbytes].view(origin.dtype)[:] = origin

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        vector, origin = values
        end = self._end(vector.size, vector.dtype)
        if self._wire is None:
            vector[:] = data[: vector.nbytes].view(vector.dtype)
        else:
            self._wire.decode(data[:end], vector)
        origin[:] = data[end : end + origin.nbytes].view(origin.dtype)

    def _end(self, elements: int, dtype: Any) -> int:
        """Return the number of bytes of the vector."""
        return plain_bytes(elements, dtype) if self._wire is None else self._wire.size(elements, dtype)
