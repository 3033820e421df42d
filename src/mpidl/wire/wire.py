"""The base class of wire formats, and what travels unencoded beside a format's data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range, within

#: Elements of the parameter vector that are encoded together.
BLOCK = 1024


class Wire:
    """A wire format: encodes a chunk of a push into a number of bytes that depends only on the chunk's length.

    Attributes
    ----------
    name : str
        Name in a configuration, such as "topk:0.01".
    block : int
        Number of consecutive elements that are encoded together. Shards begin at multiples of it, so that the decoded
        values don't depend on the number of servers.
    rows : int
        1 if the values of a chunk have shape (n,), 2 if they have shape (2, n).
    lossless : bool
        Whether the decoded values are always those encoded.
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
        """Encode values + residual, and set the residual to the error of the encoding.

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


def padded(nbytes: int) -> int:
    """Return a number of bytes, filled up to a multiple of 8."""
    return -(-nbytes // 8) * 8


def plain_bytes(elements: int, dtype: Any) -> int:
    """Return the number of bytes of unencoded elements, a multiple of 8."""
    return padded(elements * np.dtype(dtype).itemsize)


@cache
def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a format's loop compiled; Numba is imported at the first call only."""
    from mpidl.jit import jit

    return jit(loop)


class WithOrigin(Wire):
    """A vector in the format `wire` (None: unencoded), followed by the unencoded parameters that it was computed at."""

    rows = 2

    def __init__(self, wire: Wire | None) -> None:
        self._wire, self.lossless = wire, wire is None
        self.name, self.block = ("fp32", 1) if wire is None else (wire.name, wire.block)

    def size(self, elements: int, dtype: Any) -> int:
        return self._end(elements, dtype) + plain_bytes(elements, dtype)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """Encode both, with the residual of the vector."""
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


class WithStatistics:
    """A wire format for the chunks of one shard, each followed by its unencoded statistics, such as running means.

    The error of an encoded gradient may be sent later. Not so for a running average: the worker measures the same
    distance again, and both would be pushed together. A running variance would become negative. The format encodes
    statistics as zeros, or, if it is lossless, like everything else.
    """

    def __init__(self, wire: Wire, statistics: Sequence[Range] = ()) -> None:
        self.wire, self._statistics = wire, () if wire.lossless else statistics
        self._parts = cache(self._within)

    def _within(self, start: int, elements: int) -> tuple[list[slice], int]:
        """Return the statistics of a chunk, counted from its first element, and their number."""
        parts = within(self._statistics, Range(start, start + elements))
        return [slice(*part) for part in parts], sum(part.size for part in parts)

    def size(self, start: int, elements: int, dtype: Any) -> int:
        """Return the number of bytes of the encoded chunk of `elements` elements from `start` on, a multiple of 8."""
        return self.wire.size(elements, dtype) + plain_bytes(self._parts(start, elements)[1], dtype)

    def largest(self, chunk: int, dtype: Any) -> int:
        """Return the bytes of the largest encoded chunk of a shard with chunks of `chunk` elements."""
        counts: Counter[int] = Counter()
        for part in self._statistics:
            for number in range(part.start // chunk, -(-part.stop // chunk)):
                counts[number] += min(part.stop, (number + 1) * chunk) - max(part.start, number * chunk)
        return self.wire.size(chunk, dtype) + plain_bytes(max(counts.values(), default=0), dtype)

    def encode(self, start: int, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> int:
        """Encode a chunk, and return the number of bytes.

        Parameters
        ----------
        start : int
            Index in the shard of the chunk's first element.
        values, residual, out
            As for `Wire.encode`; the residual of statistics is always 0.
        """
        elements, vector = values.shape[-1], values if self.wire.rows == 1 else values[0]
        parts, count = self._parts(start, elements)
        for part in parts:
            np.negative(vector[part], out=residual[part])
        end = self.wire.size(elements, values.dtype)
        self.wire.encode(values, residual, out[:end])
        plain = out[end : end + count * values.itemsize].view(values.dtype)
        first = 0
        for part in parts:
            residual[part] = 0
            last = first + part.stop - part.start
            plain[first:last] = vector[part]
            first = last
        return end + plain_bytes(count, values.dtype)

    def decode(self, start: int, data: np.ndarray, values: np.ndarray) -> None:
        """Decode a chunk, whose first element has the index `start` in the shard, into `values`."""
        elements, vector = values.shape[-1], values if self.wire.rows == 1 else values[0]
        parts, count = self._parts(start, elements)
        end = self.wire.size(elements, values.dtype)
        self.wire.decode(data[:end], values)
        plain = data[end : end + count * values.itemsize].view(values.dtype)
        first = 0
        for part in parts:
            last = first + part.stop - part.start
            vector[part] = plain[first:last]
            first = last
