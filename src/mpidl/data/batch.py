"""Batches: the samples of one step, their seeds and parts, and how they are gathered from arrays."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from mpidl.data.columns import float_dtype, input_dtype


class Batch(NamedTuple):
    """The samples of a gradient or an evaluation.

    Attributes
    ----------
    inputs : array (n, *input_shape), float32 or float64
        NumPy or CuPy; or what the collate function of a `mpidl.data.Indexed` returns.
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


def parts(samples: int, count: int) -> Iterator[tuple[slice, float]]:
    """Yield at most `count` parts of a number of samples, each with its share of them."""
    size = -(-samples // count)
    for start in range(0, samples, size):
        stop = min(start + size, samples)
        yield slice(start, stop), (stop - start) / samples


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

    def take(self, inputs: NDArray[Any], targets: NDArray[Any], indices: NDArray[np.int64], first: int = 0) -> Batch:
        """Return the batch of `indices`.

        Parameters
        ----------
        inputs : array (m, *input_shape), integers or floats
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
        if raw is None:
            np.take(inputs, rows, axis=0, out=out, mode="clip")
        else:
            np.take(inputs, rows, axis=0, out=raw, mode="clip")
            np.copyto(out, raw)  # multiplying the bytes directly would allocate conversion buffers in each call
            if raw.dtype == np.uint8 and not self._integers:
                np.multiply(out, BYTE_SCALE, out=out)
        return Batch(out, labels)

    def _allocate(self, size: int, inputs: NDArray[Any], targets: NDArray[Any]) -> _Buffers:
        shape = (size, *inputs.shape[1:])
        dtype = (input_dtype if self._integers else float_dtype)(inputs.dtype, self._double)
        return _Buffers(
            rows=np.empty(size, np.int64),
            raw=None if inputs.dtype == dtype else np.empty(shape, inputs.dtype),
            inputs=np.empty(shape, dtype),
            targets=np.empty((size, *targets.shape[1:]), targets.dtype),
        )


def outside(indices: NDArray[np.int64], start: int, stop: int) -> IndexError:
    """Return the error for indices of which some are outside [start, stop)."""
    return IndexError(f"samples {indices.min()} to {indices.max()}: outside [{start}, {stop})")
