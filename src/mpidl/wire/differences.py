"""Fetches in fewer bytes: a copy follows the parameters by encoded differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.wire.wire import BLOCK, Wire
from mpidl.wire.with_statistics import WithStatistics

#: Number of elements that are encoded at a time: they stay in the cache between their difference and their sum.
CHUNK = 64 * BLOCK


def encoded_bytes(wire: Wire, size: int, dtype: Any, statistics: Sequence[Range] = ()) -> int:
    """Return the number of bytes of the encoded difference of a shard of `size` elements, some of them statistics."""
    encoding = WithStatistics(wire, statistics)
    return sum(encoding.size(*part, dtype) for part in _parts(size))


def _parts(size: int) -> list[tuple[int, int]]:
    """Return the first element, and the number of elements, of each part that is encoded at a time."""
    return [(first, min(CHUNK, size - first)) for first in range(0, size, CHUNK)]


class Differences:
    """One worker's copy of one shard, which follows the shard's parameters.

    The server and the worker each have one, with the same values. The server encodes what the parameters are ahead of
    the copy, and both add what was encoded. What an encoding leaves out is therefore in the next difference.

    Parameters
    ----------
    wire : Wire
        How differences are encoded.
    values : array, shape (size,), float32 or float64
        Memory of the copy.
    begun : bool
        Whether `values` are the copy's already. If not, the parameters have to be copied whole first.
    statistics : sequence of Range
        The ranges of the shard that hold statistics, which travel as they are.

    Attributes
    ----------
    values, begun
    nbytes : int
        Number of bytes of an encoded difference.

    References
    ----------
    H. Tang et al. (2019), DoubleSqueeze: parallel stochastic gradient descent with double-pass error-compensated
    compression.
    """

    def __init__(self, wire: Wire, values: np.ndarray, begun: bool = False, statistics: Sequence[Range] = ()) -> None:
        self.values, self.begun = values, begun
        self._encoding = WithStatistics(wire, statistics)
        self._parts = [slice(first, first + elements) for first, elements in _parts(values.size)]
        self._sizes = [self._encoding.size(*part, values.dtype) for part in _parts(values.size)]
        self._difference, self._residual = np.empty((2, min(CHUNK, values.size)), values.dtype)
        self.nbytes = sum(self._sizes)
        self._data = np.empty(0, np.uint8)

    def copy(self, parameters: np.ndarray) -> None:
        """Copy the parameters, shape (size,), whole."""
        self.values[:] = parameters
        self.begun = True

    def encode(self, parameters: np.ndarray, out: np.ndarray) -> None:
        """Encode what the parameters are ahead of the copy, and bring the copy up to what is encoded.

        Parameters
        ----------
        parameters : array, shape (size,)
        out : array of uint8, shape (nbytes,)
            Contiguous, aligned to 8 bytes.
        """
        start = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            elements = part.stop - part.start
            difference, residual = self._difference[:elements], self._residual[:elements]
            np.subtract(parameters[part], self.values[part], out=difference)
            residual[:] = 0
            self._encoding.encode(part.start, difference, residual, out[start : start + size])
            self._add(part, out[start : start + size])
            start += size

    def decode(self, data: np.ndarray) -> None:
        """Bring the copy up to what `encode` encoded."""
        start = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            self._add(part, data[start : start + size])
            start += size

    def fetch(self, parameters: np.ndarray) -> int:
        """Bring the copy as near to the parameters as a fetch does, and return the number of bytes that it takes."""
        if not self.begun:
            self.copy(parameters)
            return parameters.nbytes
        if not self._data.size:
            self._data = np.empty(self.nbytes, np.uint8)
        self.encode(parameters, self._data)
        return self._data.size

    def _add(self, part: slice, data: np.ndarray) -> None:
        difference = self._difference[: part.stop - part.start]
        self._encoding.decode(part.start, data, difference)
        self.values[part] += difference
