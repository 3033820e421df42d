"""Datasets: training, validation and test splits, and where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from math import prod
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from mpidl.data.batch import Batch, Gatherer, Minibatch
from mpidl.data.columns import (
    Column,
    as_array,
    check_finite,
    check_inputs,
    check_labels,
    check_targets,
    input_dtype,
    target_dtype,
)
from mpidl.data.kept import KeptState
from mpidl.data.nested import Digest
from mpidl.data.ragged import Ragged
from mpidl.data.sampling import SampledOrder
from mpidl.errors import UsageError, quoted
from mpidl.schema import LARGEST, Count, convert

SAMPLES_PER_CHECKSUM = 32
#: The ``data.source`` of runs whose data come from a Python script.
PYTHON = "python"


class Split(ABC):
    """The training, validation or test samples of a dataset.

    Attributes
    ----------
    samples : int
        Number of samples.
    contiguous : bool
        Whether neighbours are much cheaper to read together. Portions are then contiguous blocks.
    by_parts : bool
        Whether reading a part of the samples costs less than reading all.
    chunk : int
        Number of neighbours, from a multiple of this number on, that are always read together.
    lookahead : int
        Prefetch depth: the number of batches for which `prepare` is called in advance.
    """

    samples: int
    contiguous: bool = False
    by_parts: bool = False
    chunk: int = 1
    lookahead: int = 1

    def load(self) -> None:  # noqa: B027 (most splits have nothing to read ahead)
        """Read now what the first `gather` would otherwise read; UsageError if a file is damaged."""

    def release(self) -> None:  # noqa: B027 (most splits keep nothing)
        """Free what `load` has read; `gather` reads it again if necessary."""

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read these samples, a whole portion, which are needed next."""
        self.load()

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:  # noqa: B027 (few splits take long)
        """Start to make the batch for which `gather` will soon be called with the same arguments."""

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
            Inputs (n, *input_shape) float32, bytes scaled to [0, 1], or integers after `as_integers`, or a `Ragged`;
            targets (n,) int64 or (n, outputs) float32; float64 after `as_double`. The split owns both: the next call
            with the same number of indices overwrites them.

        Raises
        ------
        IndexError
            An index is outside [0, samples).
        """

    def as_integers(self) -> Split:
        """Return the same samples with integer inputs unconverted, for models that take ids; itself without any."""
        return self

    def as_double(self) -> Split:
        """Return the same samples with float64 numbers unconverted, for models of float64; itself without any."""
        return self

    def copy(self) -> Split:
        """Return the same samples with separate buffers and background readers, for use at the same time."""
        return copy(self)

    def check_classes(self, name: str, classes: int | None) -> None:  # noqa: B027 (few splits hold all labels)
        """Raise UsageError for a label outside these classes, if the labels are known; `name` is the split's."""

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        """Return the class ids of samples [start, stop); None if there are none, or inputs must be read for them."""
        return None

    def take(self, minibatch: Minibatch) -> Batch:
        """Gather the samples of a minibatch."""
        return self.gather(minibatch.indices, minibatch.epoch)._replace(number=minibatch.number)

    def in_turn(self, parts: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Gather each part in turn, while the next ones are prepared."""
        coming = iter(parts)
        for part in islice(coming, self.lookahead):
            self.prepare(part)
        for part in parts:
            batch = self.gather(part)
            for following in islice(coming, 1):
                self.prepare(following)
            yield batch

    def checksum(self) -> str:
        """Return a checksum of the number of samples and of a fixed few of them."""
        digest = Digest(self.samples)
        for index in np.linspace(0, self.samples - 1, min(SAMPLES_PER_CHECKSUM, self.samples), dtype=np.int64):
            batch = self.gather(np.array([index]))
            digest.update((batch.inputs, batch.targets))
        return digest.text()


@dataclass(frozen=True)
class Dataset:
    """A training split and, optionally, a test split and a validation split.

    Attributes
    ----------
    name : str
        The source's name, for messages.
    input_shape : tuple of int, or None
        Shape of one sample's inputs, () for bags of ids (`Ragged`); None if the samples differ in shape, or it is
        unknown.
    classes : int or None
        Targets are class ids in [0, classes), or negative for a loss that ignores these; None if they are floats, or
        unknown.
    train : Split
    test : Split or None
    validation : Split or None
        Evaluated during training, in place of the test split.
    order : SampledOrder or None
        The order of each epoch's training samples, in place of a random one.
    kept : KeptState or None
        State of the training samples, which checkpoints hold for each replica.
    owners : array (samples,) of integers, or None
        The worker to which each training sample belongs, if they belong to workers.

    Raises
    ------
    UsageError
        A split is missing or empty, or has labels outside the classes.

    Examples
    --------
    >>> split = ArraySplit(np.zeros((9, 4)), np.arange(9) % 3)
    >>> Dataset("zeros", (4,), 3, split, split).train.samples
    9
    """

    name: str
    input_shape: tuple[int, ...] | None
    classes: int | None
    train: Split
    test: Split | None = None
    validation: Split | None = None
    order: SampledOrder | None = field(default=None, kw_only=True)
    kept: KeptState | None = field(default=None, kw_only=True)
    owners: NDArray[np.integer] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        shape = convert(self.input_shape, tuple[Count, ...] | None, "Dataset.input_shape")
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "classes", convert(self.classes, Count | None, "Dataset.classes"))
        if prod(self.input_shape or ()) > LARGEST:
            raise UsageError(f"Dataset.input_shape: {self.input_shape} has more than 2**63 - 1 elements")
        for part, split in self.splits.items():
            name = f"Dataset.{part}"
            if not isinstance(split, Split):
                expected = "a Split, such as mpidl.data.ArraySplit(inputs, targets)"
                raise UsageError(f"{name}: expected {expected}, found {quoted(split)}")
            if split.samples < 1:
                raise UsageError(f"{name}: no samples, expected at least one")
            split.check_classes(name, self.classes)

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that there are, by their names."""
        others = {"validation": self.validation, "test": self.test}
        return {"train": self.train, **{name: split for name, split in others.items() if split is not None}}

    def changed(self, change: Callable[[Split], Split]) -> Dataset:
        """Return the dataset with each split replaced by what `change` returns for it."""
        return replace(self, **{name: change(split) for name, split in self.splits.items()})  # type: ignore[arg-type]

    def as_integers(self) -> Dataset:
        """Return the same data with integer inputs unconverted."""
        return self.changed(lambda split: split.as_integers())

    def as_double(self) -> Dataset:
        """Return the same data with float64 numbers unconverted."""
        return self.changed(lambda split: split.as_double())


class Source(Protocol):
    """A source of data: a dataclass of its keys in the ``[data]`` section, registered in `SOURCES`."""

    @property
    def name(self) -> str:
        """The source's name in ``data.source``; `PYTHON` for one that only a script can make."""
        ...

    def open(self) -> Dataset:
        """Open the data, and check everything but the inputs; UsageError if a file is missing or invalid."""


def opened(data: Dataset | Source) -> Dataset:
    """Return a dataset itself, or the dataset of a source."""
    return data if isinstance(data, Dataset) else data.open()


class ColumnSplit(Split):
    """A split that reads columns, and converts samples when it gathers them.

    Parameters
    ----------
    columns : Column
        The inputs and, where there are any, the targets.
    integers, double : bool
        Whether integer inputs stay integers, and whether float64 numbers stay float64.
    """

    def __init__(self, *columns: Column, integers: bool = False, double: bool = False) -> None:
        self.samples = int(columns[0].values.shape[0])
        self._columns, self._integers, self._double = columns, integers, double
        self._gatherer = Gatherer(integers, double)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        _, *targets = self._columns
        if not targets or targets[0].values.dtype.kind not in "iu":
            return None
        return np.asarray(targets[0].values[start:stop])

    def copy(self) -> ColumnSplit:
        return type(self)(*self._columns, integers=self._integers, double=self._double)

    def as_integers(self) -> ColumnSplit:
        return type(self)(*self._columns, integers=True, double=self._double)

    def as_double(self) -> ColumnSplit:
        return type(self)(*self._columns, integers=self._integers, double=True)


class ArraySplit(Split):
    """Samples in memory.

    Parameters
    ----------
    inputs : array (samples, *input_shape), a `Ragged`, or a function that returns one of them
        Integers stay integers, and bytes are scaled per batch; floats become float32, unless the model is of float64.
        A function is called when the inputs are first needed.
    targets : array (samples, ...) of integers, or (samples, outputs) of floats

    Raises
    ------
    UsageError
        The arrays don't fit together, or a number is not finite.
    """

    def __init__(self, inputs: ArrayLike | Ragged | Callable[[], Any], targets: ArrayLike) -> None:
        labels = as_array("targets", targets)
        check_targets(Column("targets", labels))
        self.samples = len(labels)
        self._given = inputs, labels
        self._convert(integers=False, double=False)

    def _convert(self, integers: bool, double: bool) -> None:
        """Convert the given arrays to the dtypes that the model needs."""
        inputs, targets = self._given
        self._integers, self._double = integers, double
        self._targets = np.ascontiguousarray(targets, dtype=target_dtype(targets.dtype, double))
        check_finite(Column("targets", self._targets))
        # Copies made before the inputs are needed read them once.
        self._inputs = cache(lambda: self._checked(inputs())) if callable(inputs) else self._checked(inputs)
        self._gatherer = Gatherer(integers, double)

    def _checked(self, inputs: Any) -> Any:
        array = as_array("inputs", inputs)
        check_inputs(Column("inputs", array))
        if len(array) != self.samples:
            raise UsageError(f"targets: {self.samples} targets, expected {len(array)} as in inputs")
        if isinstance(array, Ragged):
            return array
        with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, and are found
            array = np.ascontiguousarray(array, dtype=input_dtype(array.dtype, self._double))
        check_finite(Column("inputs", array))
        return array

    def check_classes(self, name: str, classes: int | None) -> None:
        floats = self._targets.dtype.kind == "f"
        if floats != (classes is None):
            expected = "None: the targets are floats" if floats else "their number: the targets are labels"
            raise UsageError(f"{name}: classes are {classes}, expected {expected}")
        if classes is not None:
            check_labels(Column(f"{name}: targets", self._targets), classes)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        return None if self._targets.dtype.kind == "f" else self._targets[start:stop]

    def copy(self) -> ArraySplit:
        same = copy(self)
        same._gatherer = Gatherer(self._integers, self._double)
        return same

    def as_integers(self) -> ArraySplit:
        same = copy(self)
        same._integers, same._gatherer = True, Gatherer(True, self._double)
        return same

    def as_double(self) -> ArraySplit:
        same = copy(self)
        same._convert(self._integers, double=True)
        return same

    def load(self) -> None:
        if callable(self._inputs):
            self._inputs = self._inputs()

    def release(self) -> None:
        if callable(self._given[0]):
            self._convert(self._integers, self._double)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        self.load()
        return self._gatherer.take(self._inputs, self._targets, indices)

    def checksum(self) -> str:
        """Return a checksum of a few samples and of all targets."""
        return super().checksum() + self.checksum_of_targets()

    def checksum_of_targets(self) -> str:
        """Return a checksum of all targets."""
        return xxhash.xxh3_64_hexdigest(self._targets.data.cast("B"))
