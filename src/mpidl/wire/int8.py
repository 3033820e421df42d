"""Eight bits per element, and a scale per block."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import BLOCK, Wire, compiled

#: The largest integer that is sent.
LARGEST = 127


class Int8(Wire):
    """Integers from -127 to 127 times a scale: in each block of 1024, the largest magnitude divided by 127.

    All scales precede all integers. A block with an infinity or NaN arrives as NaN, without a residual.

    References
    ----------
    T. Dettmers (2016), 8-bit approximations for parallelism in deep learning; D. Alistarh et al. (2017), QSGD.
    """

    name = "int8"
    block = BLOCK

    def size(self, elements: int, dtype: Any) -> int:
        return -(-(_end(elements, dtype) + elements) // 8) * 8

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        end = _end(values.size, values.dtype)
        scales, word = out[:end].view(values.dtype), np.dtype(f"u{values.itemsize}")
        integers = out[end : end + values.size].view(np.int8)
        compiled(_encode)(values, residual, residual.view(word), scales, scales.view(word), integers)

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        end = _end(values.size, values.dtype)
        compiled(_decode)(data[:end].view(values.dtype), data[end : end + values.size].view(np.int8), values)


def _end(elements: int, dtype: Any) -> int:
    """Return the number of bytes of the scales, one per block."""
    itemsize: int = np.dtype(dtype).itemsize
    return -(-elements // BLOCK) * itemsize


def _encode(values: Any, residual: Any, bits: Any, scales: Any, scale_bits: Any, integers: Any) -> None:
    real = values.dtype.type
    word = bits.dtype.type
    magnitude = word(word(~word(0)) >> word(1))
    for start in range(0, values.size, BLOCK):
        stop = start + BLOCK
        block, left, left_bits, sent = values[start:stop], residual[start:stop], bits[start:stop], integers[start:stop]
        for i in range(block.size):
            left[i] = block[i] if left[i] == 0 else block[i] + left[i]
        # Magnitudes are ordered like their bits, and vector instructions find the largest integer.
        largest = word(0)
        for i in range(left_bits.size):
            largest = max(largest, word(left_bits[i] & magnitude))
        number = start // BLOCK
        scale_bits[number] = largest
        if not scales[number] < real(np.inf):
            scales[number] = real(np.nan)
            for i in range(left.size):
                sent[i] = np.int8(0)
                left[i] = real(0)
            continue
        scale = real(scales[number] / real(LARGEST))
        scales[number] = scale
        # A scale may be rounded to 0, or below the least magnitude whose inverse is finite.
        divisor = scale if scale > 0 else real(1)
        for i in range(left.size):
            whole = np.rint(left[i] / divisor)
            whole = whole if whole < real(LARGEST) else real(LARGEST)
            whole = whole if whole > real(-LARGEST) else real(-LARGEST)
            sent[i] = np.int8(whole)
            left[i] -= whole * scale


def _decode(scales: Any, integers: Any, values: Any) -> None:
    real = values.dtype.type
    for start in range(0, values.size, BLOCK):
        block, received = values[start : start + BLOCK], integers[start : start + BLOCK]
        scale = scales[start // BLOCK]
        for i in range(block.size):
            block[i] = real(received[i]) * scale
