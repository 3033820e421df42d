"""Batches: the samples of one step, their seeds and parts, and how they are gathered from arrays and other datasets."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import chain
from math import isfinite, nan
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from mpidl.data.collation import has_masked, pair, targets_of
from mpidl.data.columns import float_dtype, input_dtype
from mpidl.data.nested import parts_of
from mpidl.data.ragged import Ragged
from mpidl.errors import MpidlError, kind_of, quoted, raised


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
    """Return the error for indices of which some are outside [start, stop)."""
    return IndexError(f"samples {indices.min()} to {indices.max()}: outside [{start}, {stop})")


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches of the samples of several splits, with the functions of a `mpidl.data.Indexed`."""

    splits: Mapping[str, Any]
    collate: Callable[[list[Any]], Any] | None = None
    weight: Callable[[Any, Any], float] | None = None
    classes: int | None = None

    def make(
        self, split: str, indices: NDArray[np.int64], begin: Callable[[int], object] = lambda index: None
    ) -> Batch:
        """Return the batch of some samples of a split.

        Parameters
        ----------
        indices : array (n,) of int64
        begin : callable
            Called with the index of each sample before it is read, and with -1 after the last.

        Raises
        ------
        MpidlError
            A sample or the batch can't be made; the message names the sample, or the batch's first one.
        """
        dataset, samples = self.splits[split], []
        for index in indices.tolist():
            begin(index)
            try:
                samples.append(dataset[index])
            except Exception as error:
                raise MpidlError(f"data: {split} sample {index} {raised(error)}") from error
        begin(-1)
        where = f"data: {split} samples {indices[0]}, ... ({len(indices)})"
        try:
            made = pair(samples) if self.collate is None else self._collated(samples)
        except Exception as error:
            name = "stacking" if self.collate is None else "collate"
            for index, sample in zip(indices.tolist(), samples, strict=True):
                if sample is None or (isinstance(sample, tuple) and any(each is None for each in sample)):
                    where = f"data: {split} sample {index} {'is' if sample is None else 'has'} None"
                elif isinstance(sample, tuple) and has_masked(sample):
                    where = f"data: {split} sample {index} has a masked value, expected finite numbers"
                    raise MpidlError(where) from error
            raise MpidlError(f"{where}: {name} {raised(error)}") from error
        batch = self._batch(made, where)
        weight = self._weigh(batch, len(samples), where)
        return batch._replace(weight=weight if self.weight is None else Weight(weight, self.weight))

    def _collated(self, samples: list[Any]) -> Any:
        """Return what the collate function makes of samples; PyTorch's own takes masked values for others."""
        assert self.collate is not None
        if set(map(type, samples)) == {tuple} and has_masked(list(chain.from_iterable(samples))):
            raise ValueError("a masked value")
        return self.collate(samples)

    def _batch(self, made: Any, where: str) -> Batch:
        batch = made
        if not isinstance(batch, Batch):
            made = tuple(parts_of(made).values()) if is_dataclass(made) else made  # type: ignore[union-attr]
            if isinstance(made, Mapping) and (key := targets_of(made)) is not None:
                made = {name: each for name, each in made.items() if name != key}, made[key]
            if not isinstance(made, tuple | list) or len(made) not in (2, 3):
                expected = "(inputs, targets), (inputs, targets, weight), a dict with labels or a mpidl.Batch"
                raise MpidlError(f"{where}: collate returned {kind_of(made)}, expected {expected}")
            batch = Batch(made[0], made[1], weight=made[2] if len(made) == 3 else None)
        for values in (batch.inputs, batch.targets):
            if has_masked(values if isinstance(values, tuple) else (values,)):
                raise MpidlError(f"{where}: collate returned a masked value, expected finite numbers")
        targets = batch.targets
        if self.classes is not None and isinstance(targets, np.ndarray) and targets.dtype.kind in "iu":
            wrong = (targets < 0) | (targets >= self.classes)
            if wrong.any():
                raise MpidlError(f"{where}: label {targets[wrong][0]}, expected 0 to {self.classes - 1}")
        return batch

    def _weigh(self, batch: Batch, samples: int, where: str) -> float:
        found: Any = samples if batch.weight is None else batch.weight
        if self.weight is not None:
            try:
                found = self.weight(batch.inputs, batch.targets)
            except Exception as error:
                raise MpidlError(f"{where}: weight {raised(error)}") from error
        try:
            weight = float(found)
        except (TypeError, ValueError):
            weight = nan
        if not (isfinite(weight) and weight > 0):
            raise MpidlError(f"{where}: weight {quoted(found)}, expected a number above 0")
        return weight
