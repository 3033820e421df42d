"""Statistics, such as running means, travel as they are beside what is encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range, within
from mpidl.wire.wire import Wire, plain_bytes


class WithStatistics:
    """A wire format for the chunks of one shard, behind each of which are the statistics that it has, as they are.

    What a format leaves out of a gradient may be sent later. Not so what is left out of a running average: the worker
    measures the same distance again, and both are pushed together. A running variance would become negative.

    Parameters
    ----------
    wire : Wire
        It encodes statistics as zeros. One that loses nothing encodes them as all else.
    statistics : sequence of Range
        The ranges of the shard that hold statistics, in its order.
    """

    def __init__(self, wire: Wire, statistics: Sequence[Range] = ()) -> None:
        self.wire, self._statistics = wire, () if wire.lossless else statistics
        self._parts = cache(self._within)

    def _within(self, start: int, elements: int) -> tuple[list[slice], int]:
        """Return the statistics of a chunk, counted from its first element, and their number."""
        parts = within(self._statistics, Range(start, start + elements))
        return [slice(*part) for part in parts], sum(part.size for part in parts)

    def size(self, start: int, elements: int, dtype: Any) -> int:
        """Return the number of bytes of the encoded chunk of so many elements from `start` on, a multiple of 8."""
        return self.wire.size(elements, dtype) + plain_bytes(self._parts(start, elements)[1], dtype)

    def largest(self, chunk: int, dtype: Any) -> int:
        """Return the most bytes of an encoded chunk of a shard that is cut into chunks of so many elements."""
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
            See `Wire.encode`. Nothing is left out of statistics.
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
        """Decode a chunk, whose first element has the index `start` in the shard; see `Wire.decode`."""
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
