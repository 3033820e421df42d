"""One bit per element, its sign, and two values per block (Seide et al. 2014)."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np

from mpidl.wire.wire import BLOCK, Wire, compiled


class OneBit(Wire):
    """The signs, and the means of the non-negative and of the negative elements in each block of 1024.

    The paper has a column of a weight matrix instead of a block.

    All means precede all signs. Bit j of byte i among a block's w bytes is the sign of its element w j + i:
    neighbours are in neighbouring bytes, which suits vector instructions. Infinities and NaN leave no residual.
    """

    name = "onebit"
    block = BLOCK

    def __init__(self) -> None:
        self._scratch = local()

    def size(self, elements: int, dtype: Any) -> int:
        itemsize: int = np.dtype(dtype).itemsize
        return _means(elements) * itemsize + -(-elements // 64) * 8

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        scratch = self._scratch.__dict__
        if "sums" not in scratch:
            scratch["sums"] = np.empty((2, BLOCK // 8))
        end = _means(values.size) * values.itemsize
        compiled(_encode)(values, residual, scratch["sums"], out[:end].view(values.dtype), out[end:])

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        end = _means(values.size) * values.itemsize
        compiled(_decode)(data[:end].view(values.dtype), data[end:], values)


def _means(elements: int) -> int:
    """Return the number of means, two per block."""
    return 2 * -(-elements // BLOCK)


def _encode(values: Any, residual: Any, sums: Any, means: Any, signs: Any) -> None:
    real = values.dtype.type
    for start in range(0, values.size, BLOCK):
        block, left = values[start : start + BLOCK], residual[start : start + BLOCK]
        width = (block.size + 63) // 64 * 8
        upper_sums, lower_sums = sums[0, :width], sums[1, :width]
        upper_sums[:] = 0
        lower_sums[:] = 0
        above = 0
        # One sum per byte: a single sum has a fixed order, which prevents vectorisation.
        for first in range(0, block.size, width):
            row, left_row = block[first : first + width], left[first : first + width]
            for i in range(row.size):
                v = row[i] + left_row[i]
                left_row[i] = v
                upper_sums[i] += v if v >= 0 else real(0)
                lower_sums[i] += real(0) if v >= 0 else v
                above += v >= 0
        upper_sum, lower_sum = 0.0, 0.0
        for i in range(width):
            upper_sum += upper_sums[i]
            lower_sum += lower_sums[i]
        upper = real(upper_sum / max(above, 1))
        lower = real(lower_sum / max(block.size - above, 1))
        number = start // BLOCK
        means[2 * number], means[2 * number + 1] = upper, lower
        bits = signs[start // 8 : start // 8 + width]
        bits[:] = 0
        for first in range(0, block.size, width):
            left_row = left[first : first + width]
            bit = np.uint8(1 << (first // width))
            for i in range(left_row.size):
                v = left_row[i]
                bits[i] |= bit if v >= 0 else np.uint8(0)
                rest = v - (upper if v >= 0 else lower)
                left_row[i] = rest if abs(rest) < real(np.inf) else real(0)


def _decode(means: Any, signs: Any, values: Any) -> None:
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        width = (block.size + 63) // 64 * 8
        number = start // BLOCK
        upper, lower = means[2 * number], means[2 * number + 1]
        bits = signs[start // 8 : start // 8 + width]
        for first in range(0, block.size, width):
            row = block[first : first + width]
            bit = np.uint8(1 << (first // width))
            for i in range(row.size):
                row[i] = upper if bits[i] & bit else lower
