"""Eight bits per element, and a scale per block."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import BLOCK, Wire, compiled

#: The largest integer that is sent.
LARGEST = 127


class Int8(Wire):
    """Integers from -127 to 127 times a scale: in each block of 1024, the largest magnitude divided by 127.

    All scales precede all integers. A block that holds an infinity or NaN arrives as NaN and leaves no residual.

    References
    ----------
    T. Dettmers (2016), 8-bit approximations for parallelism in deep learning; D. Alistarh et al. (2017), QSGD.
    """

    name = "int8"
    block = BLOCK

    def size(self, elements: int, dtype: Any) -> int:
        """See `Wire.size`."""
        return -(-(_end(elements, dtype) + elements) // 8) * 8

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """See `Wire.encode`."""
        end = _end(values.size, values.dtype)
        compiled(_encode)(values, residual, out[:end].view(values.dtype), out[end : end + values.size].view(np.int8))

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """See `Wire.decode`."""
        end = _end(values.size, values.dtype)
        compiled(_decode)(data[:end].view(values.dtype), data[end : end + values.size].view(np.int8), values)


def _end(elements: int, dtype: Any) -> int:
    """Return the number of bytes of the scales, one per block."""
    itemsize: int = np.dtype(dtype).itemsize
    return -(-elements // BLOCK) * itemsize


def _encode(values: Any, residual: Any, scales: Any, integers: Any) -> None:
    real = values.dtype.type
    for start in range(0, values.size, BLOCK):
        block, left = values[start : start + BLOCK], residual[start : start + BLOCK]
        sent = integers[start : start + BLOCK]
        largest, finite = real(0), True
        for i in range(block.size):
            v = block[i] if left[i] == 0 else block[i] + left[i]
            left[i] = v
            largest = max(largest, abs(v))
            finite &= abs(v) < real(np.inf)
        scale = real(largest / real(LARGEST)) if finite else real(np.nan)
        scales[start // BLOCK] = scale
        # A scale may be rounded to 0, or below the least magnitude whose inverse is finite.
        divisor = scale if scale > 0 else real(1)
        for i in range(block.size):
            whole = np.rint(left[i] / divisor) if finite else real(0)
            whole = min(max(whole, real(-LARGEST)), real(LARGEST))
            sent[i] = np.int8(whole)
            left[i] = left[i] - real(np.int8(whole)) * scale if finite else real(0)


def _decode(scales: Any, integers: Any, values: Any) -> None:
    real = values.dtype.type
    for start in range(0, values.size, BLOCK):
        block, received = values[start : start + BLOCK], integers[start : start + BLOCK]
        scale = scales[start // BLOCK]
        for i in range(block.size):
            block[i] = real(received[i]) * scale
