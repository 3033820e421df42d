"""Top-k sparsification: only the largest elements are sent (Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018)."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np

from mpidl.wire.wire import BLOCK, Wire, compiled, padded

#: Bits of a magnitude that each pass of the selection examines.
DIGIT = 8


class TopK(Wire):
    """The values, then the indices, of the elements of largest magnitude in each block of 1024.

    `fraction` of a block's elements is sent, in (0, 1], and at least one element. 1 sends all, exactly.
    """

    block = BLOCK

    def __init__(self, fraction: float, name: str) -> None:
        self.fraction = fraction
        self.name = name
        self._scratch = local()

    def count(self, elements: int) -> int:
        """Return the number of elements sent for a chunk."""
        blocks, rest = divmod(elements, BLOCK)
        return blocks * self._of_block(BLOCK) + (self._of_block(rest) if rest else 0)

    def _of_block(self, elements: int) -> int:
        return max(1, int(self.fraction * elements + 0.5))

    def size(self, elements: int, dtype: Any) -> int:
        return padded(self.count(elements) * (4 + np.dtype(dtype).itemsize))

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        scratch = self._scratch.__dict__
        if "candidates" not in scratch:
            scratch["histogram"] = np.empty(1 << DIGIT, np.int64)
            scratch["candidates"] = np.empty(BLOCK, np.uint32)
        bits = residual.view(np.uint32 if residual.itemsize == 4 else np.uint64)
        parts = self._parts(out, values.size, values.dtype)
        whole, last = self._of_block(BLOCK), self._of_block(values.size % BLOCK)
        compiled(_encode)(values, residual, bits, whole, last, scratch["histogram"], scratch["candidates"], *parts)

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """Decode `data` into `values`; raise IndexError if an index is beyond the chunk."""
        compiled(_decode)(*self._parts(data, values.size, values.dtype), values)

    def _parts(self, data: np.ndarray, elements: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return a chunk's values and indices."""
        count = self.count(elements)
        end = count * dtype.itemsize
        return data[:end].view(dtype), data[end : end + 4 * count].view(np.uint32)


def _encode(
    values: Any, residual: Any, bits: Any, whole: int, last: int, histogram: Any, candidates: Any, sent: Any,
    indices: Any,
) -> None:  # fmt: skip
    """Select by radix: magnitudes compare like their bits without the sign, so that NaN is largest.

    A whole block sends `whole` elements, and a shorter last one `last`. Each pass over a block finds one more digit of
    the smallest magnitude that is sent. Of the elements with the digits found so far, the first `wanted` are sent.
    """
    number = 0
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        for i in range(start, stop):
            # 0 + -0 is 0: adding a residual of zero would change the value -0.
            residual[i] = values[i] if residual[i] == 0 else values[i] + residual[i]
        shift = 8 * bits.itemsize - 1 - DIGIT
        mask = (np.uint64(1) << np.uint64(shift + DIGIT)) - np.uint64(1)
        histogram[:] = 0
        for i in range(start, stop):
            histogram[(bits[i] & mask) >> np.uint64(shift)] += 1
        wanted, digit = whole if stop - start == BLOCK else last, histogram.size - 1
        while histogram[digit] < wanted:
            wanted -= histogram[digit]
            digit -= 1
        least = np.uint64(digit)
        count = 0
        for i in range(start, stop):
            candidates[count] = i
            count += (bits[i] & mask) >> np.uint64(shift) >= least
        while wanted < histogram[digit] and shift > 0:
            width = min(DIGIT, shift)
            shift -= width
            histogram[:] = 0
            for c in range(count):
                magnitude = (bits[candidates[c]] & mask) >> np.uint64(shift)
                if magnitude >> np.uint64(width) == least:
                    histogram[magnitude & np.uint64((1 << width) - 1)] += 1
            digit = (1 << width) - 1
            while histogram[digit] < wanted:
                wanted -= histogram[digit]
                digit -= 1
            least = least << np.uint64(width) | np.uint64(digit)
        for c in range(count):
            i = candidates[c]
            magnitude = (bits[i] & mask) >> np.uint64(shift)
            if magnitude > least or (magnitude == least and wanted > 0):
                wanted -= magnitude == least
                sent[number] = residual[i]
                indices[number] = i
                residual[i] = 0
                number += 1


def _decode(sent: Any, indices: Any, values: Any) -> None:
    values[:] = 0
    for number in range(sent.size):
        # Damaged data must not overwrite other memory.
        if indices[number] >= values.size:
            raise IndexError("topk: index beyond the chunk's elements")
        values[indices[number]] = sent[number]
