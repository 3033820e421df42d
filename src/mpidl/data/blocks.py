"""Blocks of neighbouring samples in memory: the portion in use, and the next one, which is read in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, Gatherer, outside

#: Inputs and targets of a block.
Memory = tuple[Any, Any]


class Block:
    """Samples [start, stop) of a split, in memory that can be used again."""

    def __init__(self) -> None:
        self.start = self.stop = 0
        self.memory: Memory | None = None
        self.reading: Future[None] | None = None


class Blocks:
    """The blocks of a split that are in memory.

    Parameters
    ----------
    samples : int
        Number of samples of the split.
    read : callable
        Takes the bounds of a block and memory of an earlier one, or None, and returns the block's inputs and targets:
        in this memory if it is large enough.
    pick : callable
        Takes sorted indices of samples that aren't neighbours, and returns their inputs and targets.
    """

    def __init__(
        self, samples: int, read: Callable[[int, int, Memory | None], Memory],
        pick: Callable[[NDArray[np.int64]], Memory],
    ) -> None:  # fmt: skip
        self._samples, self._read, self._pick = samples, read, pick
        # The last block is the newest, in use or needed next; a new portion overwrites the first.
        self._portions = [Block(), Block()]
        self._other = Block()
        self._reader: ThreadPoolExecutor | None = None

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read a contiguous portion in the background; do nothing for other samples."""
        start, stop = int(indices.min()), int(indices.max()) + 1
        if stop - start != len(indices):
            return
        newest = self._portions[-1]
        if (newest.start, newest.stop) == (start, stop):
            return
        self._portions.reverse()
        block = self._portions[-1]
        if (block.start, block.stop) == (start, stop):
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        block.start, block.stop = start, stop
        block.reading = self._reader.submit(self._fill, block, start, stop)

    def gather(self, gatherer: Gatherer, indices: NDArray[np.int64]) -> Batch:
        """Return the batch of some samples: from a portion if it has them all, else they are read."""
        low, high = int(indices.min()), int(indices.max())
        block = self._find(low, high + 1)
        if block is None:
            if low < 0 or high >= self._samples:
                raise outside(indices, 0, self._samples)
            if high - low >= len(indices):
                rows, places = np.unique(indices, return_inverse=True)
                return gatherer.take(*self._pick(rows), places)
            block = self._other
            block.start = low
            self._fill(block, low, high + 1)
        assert block.memory is not None
        return gatherer.take(*block.memory, indices, block.start)

    def _find(self, start: int, stop: int) -> Block | None:
        """Return the portion with all samples of [start, stop), once it has been read; None if there is none."""
        for block in self._portions:
            if block.reading is not None and block.start <= start and stop <= block.stop:
                block.reading.result()
                return block
        return None

    def _fill(self, block: Block, start: int, stop: int) -> None:
        block.memory = self._read(start, stop, block.memory)
