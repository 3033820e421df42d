"""Quantisation: fewer bits per element, from 16 to one."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np

from mpidl.wire.wire import BLOCK, Wire, compiled, padded


class Bf16(Wire):
    """Two bytes per element; float64 is first rounded to float32. Infinities and NaN are kept, without a residual."""

    name = "bf16"

    def size(self, elements: int, dtype: Any) -> int:
        return padded(2 * elements)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        compiled(_encode_bf16)(values, residual, out[: 2 * values.size].view(np.uint16))

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        compiled(_decode_bf16)(data[: 2 * values.size].view(np.uint16), values)


def _encode_bf16(values: Any, residual: Any, halves: Any) -> None:
    real = values.dtype.type
    for i in range(values.size):
        # 0 + -0 is 0: adding a residual of zero would change the value -0.
        v = values[i] if residual[i] == 0 else values[i] + residual[i]
        bits = np.float32(v).view(np.uint32)
        # Rounding carries into the upper half, but must not turn a NaN into an infinity or a zero.
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        half = np.uint32(rounded if v == v else (bits >> np.uint32(16)) | np.uint32(0x40))
        left = v - np.uint32(half << np.uint32(16)).view(np.float32)
        halves[i] = half
        residual[i] = left if abs(left) < real(np.inf) else real(0)


def _decode_bf16(halves: Any, values: Any) -> None:
    for i in range(values.size):
        values[i] = np.uint32(np.uint32(halves[i]) << np.uint32(16)).view(np.float32)


#: The largest integer of `Int8`.
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
        return padded(_end_of_scales(elements, dtype) + elements)

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        end = _end_of_scales(values.size, values.dtype)
        scales, word = out[:end].view(values.dtype), np.dtype(f"u{values.itemsize}")
        integers = out[end : end + values.size].view(np.int8)
        compiled(_encode_int8)(values, residual, residual.view(word), scales, scales.view(word), integers)

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        end = _end_of_scales(values.size, values.dtype)
        compiled(_decode_int8)(data[:end].view(values.dtype), data[end : end + values.size].view(np.int8), values)


def _end_of_scales(elements: int, dtype: Any) -> int:
    """Return the number of bytes of the scales, one per block."""
    itemsize: int = np.dtype(dtype).itemsize
    return -(-elements // BLOCK) * itemsize


def _encode_int8(values: Any, residual: Any, bits: Any, scales: Any, scale_bits: Any, integers: Any) -> None:
    real = values.dtype.type
    word = bits.dtype.type
    magnitude = word(word(~word(0)) >> word(1))
    for start in range(0, values.size, BLOCK):
        stop = start + BLOCK
        block, left, left_bits, sent = values[start:stop], residual[start:stop], bits[start:stop], integers[start:stop]
        for i in range(block.size):
            left[i] += block[i]
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


def _decode_int8(scales: Any, integers: Any, values: Any) -> None:
    real = values.dtype.type
    for start in range(0, values.size, BLOCK):
        block, received = values[start : start + BLOCK], integers[start : start + BLOCK]
        scale = scales[start // BLOCK]
        for i in range(block.size):
            block[i] = real(received[i]) * scale


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
        compiled(_encode_onebit)(values, residual, scratch["sums"], out[:end].view(values.dtype), out[end:])

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        end = _means(values.size) * values.itemsize
        compiled(_decode_onebit)(data[:end].view(values.dtype), data[end:], values)


def _means(elements: int) -> int:
    """Return the number of means, two per block."""
    return 2 * -(-elements // BLOCK)


def _encode_onebit(values: Any, residual: Any, sums: Any, means: Any, signs: Any) -> None:
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


def _decode_onebit(means: Any, signs: Any, values: Any) -> None:
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
