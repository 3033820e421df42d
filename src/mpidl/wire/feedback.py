"""Error feedback: what a wire format leaves out of one push is added to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.parameters.ranges import Range
from mpidl.wire.wire import Wire
from mpidl.wire.with_statistics import WithStatistics


class ErrorFeedback:
    """Encodes one worker's pushes to one shard, and adds what one push leaves out to the next.

    Parameters
    ----------
    wire : Wire
    size : int
        Number of elements in the shard.
    dtype : dtype
        float32 or float64.
    statistics : sequence of Range
        The ranges of the shard that hold statistics, which travel as they are.

    Attributes
    ----------
    wire : Wire
    residual : array (size,)
        What has been left out so far.

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
        """Encode a part of a push chunk by chunk, each into a slot of its own; allocate no arrays.

        Parameters
        ----------
        start : int
            Index in the shard of the first element of `values`, which begins a chunk.
        values : array (n,) or (rows, n) of the shard's dtype
        chunk : int
            Number of elements in a chunk; the last one may be shorter.
        out : array of uint8
            The slots: contiguous, aligned to 8 bytes. The bytes between chunks are left alone.
        stride : int
            Bytes from the beginning of one slot to the next, a multiple of 8; unused for a single chunk.

        Returns
        -------
        list of slice
            The bytes of `out` that have been written. Chunks that fill their slots are in one slice with the next.
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
        """Encode and decode a whole push, as if it went to a server, and return the number of bytes it takes.

        Parameters
        ----------
        values : array (size,) or (rows, size)
        chunk : int
            Number of elements in a chunk; the last one may be shorter.
        decoded : array like `values`
            Overwritten with what arrives; may be `values` itself.
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
