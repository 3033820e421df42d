"""The loops of the wire formats, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit


@jit
def encode_bf16(value: Any, bits: Any, out: Any) -> None:
    """Round float32 `bits` to their upper halves in `out`; `value` becomes what that leaves out of it."""
    for i in range(bits.size):
        b = bits[i]
        if b & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
            # Not a number: keep it one, whatever bits are cut off.
            out[i] = np.uint16((b >> np.uint32(16)) | np.uint32(0x40))
        else:
            out[i] = np.uint16((b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
    sent = np.empty(bits.size, np.uint32)
    for i in range(bits.size):
        sent[i] = np.uint32(out[i]) << np.uint32(16)
    decoded = sent.view(np.float32)
    for i in range(value.size):
        left = value[i] - decoded[i]
        value[i] = left if abs(left) < np.inf else 0


@jit
def widen_bf16(halves: Any, bits: Any) -> None:
    """Write bfloat16 as the bits of float32."""
    for i in range(bits.size):
        bits[i] = np.uint32(halves[i]) << np.uint32(16)


@jit
def encode_topk(value: Any, bits: Any, candidates: Any, sent: Any, indices: Any) -> None:
    """Move the `sent.size` elements of largest magnitude from `value` to `sent`, ascending in `indices`.

    Of equal magnitudes the first count. `bits` are those of `value`: magnitudes compare as their bits without sign.
    """
    width = 8 * bits.itemsize
    one = bits.dtype.type(1)
    mask = (one << bits.dtype.type(width - 1)) - one
    shift = bits.dtype.type(width - 12)
    histogram = np.zeros(2048, np.int64)
    for i in range(bits.size):
        histogram[(bits[i] & mask) >> shift] += 1
    # The bin in which the last of the largest lies.
    above, last = 0, 2047
    while above + histogram[last] < sent.size:
        above += histogram[last]
        last -= 1
    least = bits.dtype.type(last) << shift
    count = 0
    for i in range(bits.size):
        candidates[count] = i
        count += (bits[i] & mask) >= least
    inside = np.empty(histogram[last], bits.dtype)
    found = 0
    for c in range(count):
        magnitude = bits[candidates[c]] & mask
        if magnitude >> shift == bits.dtype.type(last):
            inside[found] = magnitude
            found += 1
    wanted = sent.size - above
    threshold = np.partition(inside, found - wanted)[found - wanted]
    ties = wanted
    for j in range(found):
        ties -= inside[j] > threshold
    count_sent = 0
    for c in range(count):
        i = candidates[c]
        magnitude = bits[i] & mask
        if magnitude == threshold:
            ties -= 1
        if magnitude > threshold or (magnitude == threshold and ties >= 0):
            sent[count_sent] = value[i]
            indices[count_sent] = i
            value[i] = 0
            count_sent += 1


@jit
def encode_onebit(values: Any, residual: Any, means: Any, bits: Any, block: int) -> None:
    """Write the signs of values + residual, and the means of each block's two kinds; keep what they leave out."""
    for start in range(0, values.size, block):
        stop = min(start + block, values.size)
        total, negative, positives = 0.0, 0.0, 0
        for i in range(start, stop):
            v = values[i] + residual[i]
            residual[i] = v
            total += v
            negative += v if v < 0 else 0
            positives += v >= 0
        upper = means.dtype.type((total - negative) / positives if positives else 0.0)
        lower = means.dtype.type(negative / (stop - start - positives) if positives < stop - start else 0.0)
        number = start // block
        means[2 * number], means[2 * number + 1] = upper, lower
        for first in range(start, stop, 8):
            byte = 0
            for i in range(first, min(first + 8, stop)):
                sign = residual[i] >= 0
                byte |= sign << (i - first)
                residual[i] -= upper if sign else lower
            bits[first >> 3] = byte


@jit
def decode_onebit(means: Any, bits: Any, values: Any, block: int) -> None:
    """Write each element's block's value for its sign."""
    for start in range(0, values.size, block):
        number = start // block
        upper, lower = means[2 * number], means[2 * number + 1]
        for i in range(start, min(start + block, values.size)):
            values[i] = upper if (bits[i >> 3] >> (i & 7)) & 1 else lower
