"""Datasets: a training and a test split, and the checks that all sources share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from mpidl.data.batch import Batch, Minibatch
from mpidl.errors import UsageError

BYTE_SCALE = np.float32(1 / 255)
LABELS_PER_CHECK = 1 << 20
SAMPLES_PER_CHECKSUM = 32


class Split(ABC):
    """The training samples or the test samples of a dataset.

    Attributes
    ----------
    samples : int
        Number of samples.
    contiguous : bool
        Whether neighbours are much cheaper to read together. Portions are then contiguous blocks.
    """

    samples: int
    contiguous: bool = False

    def load(self) -> None:  # noqa: B027 (most splits have nothing to read ahead)
        """Read now what the first `gather` would otherwise read.

        Raises
        ------
        UsageError
            If a file is truncated, or longer than its header says.
        """

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Announce that these samples, a whole portion, are needed next."""
        self.load()

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:  # noqa: B027 (few splits take long)
        """Announce that `gather` will soon be called with the same arguments."""

    @abstractmethod
    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        """Return the samples with these indices, in their order.

        Parameters
        ----------
        indices : array (n,) of int64
            Each in [0, samples); at least one.
        epoch : int
            Epoch, from 0. Augmented samples differ from epoch to epoch; others don't.

        Returns
        -------
        Batch
            Inputs (n, *input_shape) float32, bytes scaled to [0, 1]; targets (n,) int64 or (n, outputs)
            float32. The split owns both: the next call with the same number of indices overwrites them.

        Raises
        ------
        IndexError
            If an index lies outside [0, samples).
        """

    def take(self, minibatch: Minibatch) -> Batch:
        """Return the samples of a minibatch; see `gather`."""
        return self.gather(minibatch.indices, minibatch.epoch)._replace(number=minibatch.number)

    def checksum(self) -> str:
        """Return a checksum of the number of samples and of a few of them, the same few each time."""
        checksum = xxhash.xxh3_64(str(self.samples).encode())
        for index in np.linspace(0, self.samples - 1, min(SAMPLES_PER_CHECKSUM, self.samples), dtype=np.int64):
            batch = self.gather(np.array([index]))
            for values in (batch.inputs, batch.targets):
                checksum.update(np.ascontiguousarray(values).data.cast("B"))
        return checksum.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A training split and a test split.

    Attributes
    ----------
    name : str
        The source's name, for messages.
    input_shape : tuple of int
        Shape of one sample's inputs.
    classes : int or None
        Targets are class ids in [0, classes); None if they are floats.
    train, test : Split
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int | None
    train: Split
    test: Split


class Source(Protocol):
    """A source of data: a dataclass of its keys in the ``[data]`` section, registered in `SOURCES`.

    Attributes
    ----------
    name : str
        The source's name in ``data.source``.
    """

    name: ClassVar[str]

    def open(self) -> Dataset:
        """Open the data, and check whatever can be checked without reading the inputs.

        Raises
        ------
        UsageError
            If a file is missing or invalid.
        """


class _Buffers(NamedTuple):
    rows: NDArray[np.int64]
    raw: NDArray[Any] | None
    inputs: NDArray[np.float32]
    targets: NDArray[Any]


class Gatherer:
    """Copies samples out of arrays in memory into batches whose buffers it owns, one set per batch size."""

    def __init__(self) -> None:
        self._buffers: dict[int, _Buffers] = {}

    def take(self, inputs: NDArray[Any], targets: NDArray[Any], indices: NDArray[np.int64], first: int = 0) -> Batch:
        """Return the batch of `indices`.

        Parameters
        ----------
        inputs : array (m, *input_shape), uint8 or float32, C-contiguous
        targets : array (m,) of int64, or (m, outputs) of float32, C-contiguous
        indices : array (n,) of int64
            Each in [first, first + m).
        first : int
            Index of the first row of `inputs`.
        """
        buffers = self._buffers.get(len(indices))
        if buffers is None:
            buffers = self._buffers[len(indices)] = _allocate(len(indices), inputs, targets)
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
            np.multiply(out, BYTE_SCALE, out=out)
        return Batch(out, labels)


def outside(indices: NDArray[np.int64], start: int, stop: int) -> IndexError:
    """Return the error for indices that aren't all in [start, stop)."""
    return IndexError(f"samples {indices.min()} to {indices.max()}: outside [{start}, {stop})")


def _allocate(size: int, inputs: NDArray[Any], targets: NDArray[Any]) -> _Buffers:
    shape = (size, *inputs.shape[1:])
    return _Buffers(
        rows=np.empty(size, np.int64),
        raw=np.empty(shape, np.uint8) if inputs.dtype == np.uint8 else None,
        inputs=np.empty(shape, np.float32),
        targets=np.empty((size, *targets.shape[1:]), targets.dtype),
    )


class ArraySplit(Split):
    """Samples in memory.

    Parameters
    ----------
    inputs : array (samples, *input_shape), or a function that returns one
        Bytes stay bytes and are scaled per batch; floats become float32. A function is called when the inputs are
        first needed.
    targets : array (samples,) of integers, or (samples, outputs) of floats
    """

    def __init__(self, inputs: NDArray[Any] | Callable[[], NDArray[Any]], targets: NDArray[Any]) -> None:
        self.samples = len(targets)
        self._inputs = inputs if callable(inputs) else _inputs(inputs)
        self._targets = np.ascontiguousarray(targets, dtype=target_dtype(targets.dtype))
        self._gatherer = Gatherer()

    def load(self) -> None:
        if callable(self._inputs):
            self._inputs = _inputs(self._inputs())

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        self.load()
        return self._gatherer.take(self._inputs, self._targets, indices)  # type: ignore[arg-type]

    def checksum(self) -> str:
        """See `Split.checksum`: of all targets, too."""
        return super().checksum() + xxhash.xxh3_64_hexdigest(self._targets.data.cast("B"))


def _inputs(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array, dtype=input_dtype(array.dtype))


def input_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that inputs of `dtype` have in memory: uint8 for bytes, float32 for floats."""
    return np.dtype(np.uint8 if dtype == np.uint8 else np.float32)


def target_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the targets of a batch: int64 for integers, float32 for floats."""
    return np.dtype(np.float32 if dtype.kind == "f" else np.int64)


class Column(NamedTuple):
    """Inputs or targets, and their file (and key) for error messages.

    `values` has a shape and a dtype; targets are read in slices.
    """

    name: str
    values: Any


def check(
    train: tuple[Column, Column], test: tuple[Column, Column], classes: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Check that the inputs and targets of both splits fit together, and that every label is valid.

    Parameters
    ----------
    train, test : (inputs, targets)
    classes : int or None
        Number of classes; None for one more than the largest label of `train`.

    Returns
    -------
    input_shape, classes
        See `Dataset`.

    Raises
    ------
    UsageError
        If anything doesn't fit.
    """
    for inputs, targets in (train, test):
        _check_inputs(inputs)
        _check_targets(targets)
        samples = inputs.values.shape[0]
        if targets.values.shape[0] != samples:
            found = targets.values.shape[0]
            raise UsageError(f"{targets.name}: {found} targets, expected {samples} as in {inputs.name}")
        if samples == 0:
            raise UsageError(f"{inputs.name}: no samples, expected at least one")
    for of_test, of_train in zip(test, train, strict=True):
        _check_alike(of_test, of_train)
    input_shape = tuple(int(size) for size in train[0].values.shape[1:])
    if train[1].values.dtype.kind == "f":
        if classes is not None:
            raise UsageError(f"data.classes: {classes}, expected none: {train[1].name} contains floats")
        return input_shape, None
    largest = _check_labels(train[1], classes)
    classes = largest + 1 if classes is None else classes
    _check_labels(test[1], classes)
    return input_shape, classes


def _check_inputs(inputs: Column) -> None:
    shape, dtype = inputs.values.shape, inputs.values.dtype
    if len(shape) < 2 or 0 in shape[1:]:
        raise UsageError(f"{inputs.name}: shape {shape}, expected (samples, ...) with no size 0 per sample")
    if dtype != np.uint8 and dtype.kind != "f":
        raise UsageError(f"{inputs.name}: {dtype}, expected floats or bytes (uint8)")


def _check_targets(targets: Column) -> None:
    shape, dtype = targets.values.shape, targets.values.dtype
    if not (dtype.kind in "iu" and len(shape) == 1) and not (dtype.kind == "f" and len(shape) == 2):
        expected = "integers of shape (samples,) or floats of shape (samples, outputs)"
        raise UsageError(f"{targets.name}: {dtype} of shape {shape}, expected {expected}")


def _check_alike(test: Column, train: Column) -> None:
    found, expected = test.values, train.values
    if (found.dtype.kind == "f") != (expected.dtype.kind == "f"):
        raise UsageError(f"{test.name}: {found.dtype}, expected {expected.dtype} as in {train.name}")
    if found.shape[1:] != expected.shape[1:]:
        shapes = f"shape {found.shape[1:]} per sample, expected {expected.shape[1:]}"
        raise UsageError(f"{test.name}: {shapes} as in {train.name}")


def _check_labels(labels: Column, classes: int | None) -> int:
    """Return the largest label; check that all are in [0, classes), or not negative if `classes` is None."""
    largest = 0
    for start in range(0, labels.values.shape[0], LABELS_PER_CHECK):
        block = labels.values[start : start + LABELS_PER_CHECK]
        largest = max(largest, int(block.max()))
        if block.min() >= 0 and (classes is None or largest < classes):
            continue
        wrong = block < 0 if classes is None else (block < 0) | (block >= classes)
        first = int(np.flatnonzero(wrong)[0])
        expected = "at least 0" if classes is None else f"0 to {classes - 1}"
        raise UsageError(f"{labels.name}: label {block[first]} at index {start + first}, expected {expected}")
    return largest
