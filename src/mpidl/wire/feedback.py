"""Error feedback: what one encoding of a push or of a fetch omits is added to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.parameters.ranges import Range
from mpidl.wire.wire import BLOCK, Wire, WithStatistics


class ErrorFeedback:
    """Encodes one worker's pushes to one shard, and adds the error of each encoding to the next push.

    Parameters
    ----------
    wire : Wire
    size : int
        Number of elements in the shard.
    dtype : dtype
        float32 or float64.
    statistics : sequence of Range
        The ranges of the shard that hold statistics, which aren't encoded.

    Attributes
    ----------
    residual : array (size,)
        The error accumulated so far.

    References
    ----------
    F. Seide et al. (2014), 1-bit stochastic gradient descent; S. Karimireddy et al. (2019), Error feedback fixes
    SignSGD and other gradient compression schemes.
    """

    def __init__(self, wire: Wire, size: int, dtype: Any, statistics: Sequence[Range] = ()) -> None:
        self.wire, self._encoding = wire, WithStatistics(wire, statistics)
        self.residual = np.zeros(size, dtype)

    def encode_chunks(
        self, start: int, values: NDArray[Any], chunk: int, out: NDArray[np.uint8], stride: int = 0
    ) -> list[slice]:
        """Encode a part of a push chunk by chunk, each into its own slot; allocate no arrays.

        Parameters
        ----------
        start : int
            Index in the shard of the first element of `values`, at which a chunk begins.
        values : array (n,) or (rows, n) of the shard's dtype
        chunk : int
            Number of elements in a chunk; the last one may be shorter.
        out : array of uint8
            The slots: contiguous, aligned to 8 bytes. Bytes between chunks are not written.
        stride : int
            Bytes from the beginning of one slot to the next, a multiple of 8; unused for a single chunk.

        Returns
        -------
        list of slice
            The bytes of `out` that have been written, with adjacent ones joined.
        """
        written: list[slice] = []
        for number, first in enumerate(range(0, values.shape[-1], chunk)):
            part = values[..., first : first + chunk]
            elements = part.shape[-1]
            residual = self.residual[start + first : start + first + elements]
            slot = number * stride
            end = slot + self._encoding.encode(start + first, part, residual, out[slot:])
            if written and written[-1].stop == slot:
                slot = written.pop().start
            written.append(slice(slot, end))
        return written

    def round_trip(self, values: NDArray[Any], chunk: int, decoded: NDArray[Any]) -> int:
        """Encode and decode a whole push in chunks, as if it went to a server, and return the number of bytes sent.

        `values`, (size,) or (rows, size), may be the same array as `decoded`, which is overwritten.
        """
        size = values.shape[-1]
        data = np.empty(self._encoding.largest(min(chunk, size), values.dtype), np.uint8)
        total = 0
        for start in range(0, size, chunk):
            part = slice(start, start + chunk)
            (own,) = self.encode_chunks(start, values[..., part], chunk, data)
            self._encoding.decode(start, data[own], decoded[..., part])
            total += own.stop
        return total


#: Elements encoded at a time: they stay in the cache between their difference and their sum.
CHUNK = 64 * BLOCK


def encoded_bytes(wire: Wire, size: int, dtype: Any, statistics: Sequence[Range] = ()) -> int:
    """Return the number of bytes of the encoded difference of a shard of `size` elements, some of them statistics."""
    encoding = WithStatistics(wire, statistics)
    return sum(encoding.size(*part, dtype) for part in _parts(size))


def _parts(size: int) -> list[tuple[int, int]]:
    """Return the first element and the number of elements of each part that is encoded at a time."""
    return [(first, min(CHUNK, size - first)) for first in range(0, size, CHUNK)]


class Differences:
    """One worker's copy of one shard, which follows the shard's parameters by encoded differences.

    The server and the worker each have one, with the same values. The server encodes the difference of the parameters
    from the copy, and both add the decoded one. The error of an encoding is therefore in the next difference.

    Parameters
    ----------
    wire : Wire
        Format of the differences.
    values : array, shape (size,), float32 or float64
        Memory of the copy.
    begun : bool
        Whether `values` is a copy already. If not, the whole parameters have to be copied first.
    statistics : sequence of Range
        The ranges of the shard that hold statistics, which aren't encoded.

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
        """Copy the whole parameters, shape (size,)."""
        self.values[:] = parameters
        self.begun = True

    def encode(self, parameters: np.ndarray, out: np.ndarray) -> None:
        """Encode the difference of the parameters from the copy, and add the decoded one to the copy.

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
        """Add a difference from `encode` to the copy."""
        start = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            self._add(part, data[start : start + size])
            start += size

    def fetch(self, parameters: np.ndarray) -> int:
        """Update the copy as a fetch does, and return the number of bytes fetched."""
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
