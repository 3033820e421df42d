"""Batches: the samples of one step, their seeds and parts, gathered from arrays or from blocks of files."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from mpidl.data.columns import float_dtype, input_dtype
from mpidl.data.ragged import Ragged
from mpidl.errors import MpidlError


class Weight(float):
    """The weight of a batch that a function of its inputs and targets returned, which can weigh parts of it, too."""

    function: Callable[[Any, Any], float]

    def __new__(cls, value: float, function: Callable[[Any, Any], float]) -> Weight:
        weight = super().__new__(cls, value)
        weight.function = function
        return weight

    def __getnewargs__(self) -> tuple[Any, ...]:
        return float(self), self.function


class Batch(NamedTuple):
    """The samples of a gradient or an evaluation.

    Attributes
    ----------
    inputs : array (n, *input_shape), float32 or float64
        NumPy or CuPy; a `Ragged`, for bags of ids; or what the collate function of a `mpidl.data.Indexed` returns.
    targets : array (n,) int64 of class ids, or (n, outputs) of floats
        In the same array package as `inputs`; or what the collate function returns.
    number : int
        Ordinal of the minibatch in the run, the seed of a model's random numbers.
    weight : float, optional
        Weight of the batch relative to others, such as its number of tokens or atoms; losses are means over it. The
        default is the number of samples.
    """

    inputs: Any
    targets: Any
    number: int = 0
    weight: float | None = None

    @property
    def total(self) -> float:
        """The batch's weight or, without one, its number of samples."""
        return float(len(self.inputs)) if self.weight is None else self.weight

    @property
    def own_weight(self) -> float | None:
        """The weight unless it is, as the targets show, the number of samples."""
        shape = list(getattr(self.targets, "shape", ()))
        return None if shape[:1] == [self.weight] else self.weight

    def shares(self, pieces: Sequence[tuple[Any, Any]], samples: Sequence[int]) -> list[float]:
        """Return each piece's share of the batch's weight.

        Parameters
        ----------
        pieces : sequence of (inputs, targets)
        samples : sequence of int
            Number of samples in each.

        Raises
        ------
        MpidlError
            The batch has a weight of its own that pieces don't have.
        """
        weights: Sequence[float] = samples
        if isinstance(self.weight, Weight):
            weights = [float(self.weight.function(*piece)) for piece in pieces]
        elif self.weight not in (None, sum(samples)):
            raise MpidlError(
                f"model.micro_batches: a batch of {sum(samples)} samples has the weight {self.weight:g}, but the "
                "weights of its pieces are unknown: give a function for them, mpidl.Indexed(weight=...)"
            )
        return [weight / sum(weights) for weight in weights]


class Minibatch(NamedTuple):
    """The indices (n,) of the samples of one step, its ordinal in the run, and its epoch, from 0."""

    indices: NDArray[np.int64]
    number: int
    epoch: int


BYTE_SCALE = np.float32(1 / 255)
T = TypeVar("T")


def seed_of_batch(seed: int, number: int) -> int:
    """Return the seed, of 32 bits, of a model's random numbers for batch `number` of a run."""
    return xxhash.xxh32_intdigest(struct.pack("<QQ", seed % 2**64, number))


def parts(samples: int, count: int) -> list[slice]:
    """Return at most `count` parts of a number of samples."""
    size = -(-samples // count)
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


class Prepared(Generic[T]):
    """Batches that a split is preparing, by their indices and epoch; at most the last `limit` ones."""

    def __init__(self, limit: int | None = None) -> None:
        self._entries: deque[tuple[NDArray[np.int64], int, T]] = deque(maxlen=limit)

    def add(self, indices: NDArray[np.int64], epoch: int, prepared: T) -> None:
        """Add what is prepared for a batch."""
        self._entries.append((indices, epoch, prepared))

    def claim(self, indices: NDArray[np.int64], epoch: int) -> T | None:
        """Remove and return what is prepared for a batch; None if nothing is."""
        for number, (of_entry, epoch_of_entry, prepared) in enumerate(self._entries):
            if epoch_of_entry == epoch and np.array_equal(of_entry, indices):
                del self._entries[number]
                return prepared
        return None


class _Buffers(NamedTuple):
    rows: NDArray[np.int64]
    raw: NDArray[Any] | None
    inputs: NDArray[Any]
    targets: NDArray[Any]


class Gatherer:
    """Copies samples from arrays in memory into batches whose buffers it owns, one set per batch size.

    Parameters
    ----------
    integers : bool
        Whether integer inputs stay integers; otherwise they become float32, and bytes are scaled to [0, 1].
    double : bool
        Whether float64 inputs stay float64; otherwise they become float32.
    """

    def __init__(self, integers: bool = False, double: bool = False) -> None:
        self._integers, self._double = integers, double
        self._buffers: dict[int, _Buffers] = {}

    def take(self, inputs: Any, targets: NDArray[Any], indices: NDArray[np.int64], first: int = 0) -> Batch:
        """Return the batch of `indices`.

        Parameters
        ----------
        inputs : array (m, *input_shape), integers or floats; or a `Ragged` of m bags
        targets : array (m,) of int64, or (m, outputs) of floats, C-contiguous
        indices : array (n,) of int64
            Each in [first, first + m).
        first : int
            Index of the first row of `inputs`.
        """
        buffers = self._buffers.get(len(indices))
        if buffers is None:
            buffers = self._buffers[len(indices)] = self._allocate(len(indices), inputs, targets)
        rows, raw, out, labels = buffers
        np.subtract(indices, first, out=rows)
        if rows.min() < 0 or rows.max() >= len(inputs):
            raise outside(indices, first, first + len(inputs))
        # With mode="raise", take() buffers its output, which costs another copy.
        np.take(targets, rows, axis=0, out=labels, mode="clip")
        if isinstance(inputs, Ragged):
            return Batch(inputs.take(rows), labels)
        if raw is None:
            np.take(inputs, rows, axis=0, out=out, mode="clip")
        else:
            np.take(inputs, rows, axis=0, out=raw, mode="clip")
            np.copyto(out, raw)  # multiplying the bytes directly would allocate conversion buffers in each call
            if raw.dtype == np.uint8 and not self._integers:
                np.multiply(out, BYTE_SCALE, out=out)
        return Batch(out, labels)

    def _allocate(self, size: int, inputs: Any, targets: NDArray[Any]) -> _Buffers:
        shape = (size, *inputs.shape[1:])
        dtype = (input_dtype if self._integers else float_dtype)(inputs.dtype, self._double)
        return _Buffers(
            rows=np.empty(size, np.int64),
            raw=None if inputs.dtype == dtype else np.empty(shape, inputs.dtype),
            inputs=np.empty(shape, dtype),
            targets=np.empty((size, *targets.shape[1:]), targets.dtype),
        )


def outside(indices: NDArray[np.int64], start: int, stop: int) -> IndexError:
    """Return the error for indices that are not all in [start, stop)."""
    return IndexError(f"samples {indices.min()} to {indices.max()}: outside [{start}, {stop})")


#: Inputs and targets of a block.
BlockArrays = tuple[Any, Any]


class Block:
    """Samples [start, stop) of a split, in memory that can be used again."""

    def __init__(self) -> None:
        self.start = self.stop = 0
        self.memory: BlockArrays | None = None
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
        self, samples: int, read: Callable[[int, int, BlockArrays | None], BlockArrays],
        pick: Callable[[NDArray[np.int64]], BlockArrays],
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
