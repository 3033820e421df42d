"""Datasets: a training and a test split, and where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import xxhash
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from mpidl.data.batch import Batch, Minibatch
from mpidl.data.columns import (
    Column,
    check,
    check_finite,
    check_inputs,
    check_labels,
    check_targets,
    input_dtype,
    target_dtype,
)
from mpidl.data.gatherer import Gatherer
from mpidl.errors import UsageError, quoted
from mpidl.schema import LARGEST, convert

Count = Annotated[int, Meta(ge=1)]

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
            Inputs (n, *input_shape) float32, bytes scaled to [0, 1], or integers after `as_integers`; targets (n,)
            int64 or (n, outputs) float32. The split owns both: the next call with the same number of indices
            overwrites them.

        Raises
        ------
        IndexError
            If an index lies outside [0, samples).
        """

    def as_integers(self) -> Split:
        """Return the same samples with integer inputs as they are, for models that take ids; itself without any."""
        return self

    def check_classes(self, name: str, classes: int | None) -> None:  # noqa: B027 (few splits hold all labels)
        """Raise UsageError if a label is seen not to be of these classes; `name` is the split's."""

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

    Raises
    ------
    UsageError
        A split is missing or empty, or its labels are of other classes.

    Examples
    --------
    >>> inputs, labels = np.zeros((9, 4)), np.arange(9) % 3
    >>> Dataset.of_arrays((inputs, labels), (inputs[:2], labels[:2])).classes
    3
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int | None
    train: Split
    test: Split

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", convert(self.input_shape, tuple[Count, ...], "Dataset.input_shape"))
        object.__setattr__(self, "classes", convert(self.classes, Count | None, "Dataset.classes"))
        if prod(self.input_shape) > LARGEST:
            raise UsageError(f"Dataset.input_shape: {self.input_shape} has more than 2**63 - 1 elements")
        for part in ("train", "test"):
            name, split = f"Dataset.{part}", getattr(self, part)
            if not isinstance(split, Split):
                expected = "a Split, such as mpidl.ArraySplit(inputs, targets)"
                raise UsageError(f"{name}: expected {expected}, found {quoted(split)}")
            if split.samples < 1:
                raise UsageError(f"{name}: no samples, expected at least one")
            split.check_classes(name, self.classes)

    @classmethod
    def of_arrays(
        cls,
        train: tuple[ArrayLike, ArrayLike],
        test: tuple[ArrayLike, ArrayLike],
        *,
        classes: int | None = None,
        name: str = "arrays",
    ) -> Dataset:
        """Return a dataset of arrays in memory.

        Parameters
        ----------
        train, test : (inputs, targets)
            See `ArraySplit`.
        classes : int, optional
            Number of classes; one more than the largest label of `train` by default.
        name : str

        Raises
        ------
        UsageError
            The arrays don't fit together, or a number is not finite.
        """
        train_columns, test_columns = _columns("train", train), _columns("test", test)
        input_shape, classes = check(train_columns, test_columns, classes)
        splits = (ArraySplit(inputs.values, targets.values) for inputs, targets in (train_columns, test_columns))
        return cls(name, input_shape, classes, *splits)

    def as_integers(self) -> Dataset:
        """Return the same data with integer inputs as they are; see `Split.as_integers`."""
        return replace(self, train=self.train.as_integers(), test=self.test.as_integers())


def _columns(part: str, arrays: Sequence[ArrayLike]) -> tuple[Column, Column]:
    if not isinstance(arrays, tuple | list) or len(arrays) != 2:
        raise UsageError(f"{part}: expected (inputs, targets), found {quoted(arrays)}")
    inputs, targets = arrays
    return (
        Column(f"{part} inputs", _array(f"{part} inputs", inputs)),
        Column(f"{part} targets", _array(f"{part} targets", targets)),
    )


def _array(name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UsageError(f"{name}: {error}, expected an array") from None


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


class ArraySplit(Split):
    """Samples in memory.

    Parameters
    ----------
    inputs : array (samples, *input_shape), or a function that returns one
        Bytes stay bytes and are scaled per batch; other integers stay, too; floats become float32. A function is
        called when the inputs are first needed.
    targets : array (samples,) of integers, or (samples, outputs) of floats

    Raises
    ------
    UsageError
        The arrays don't fit together, or a number is not finite.
    """

    def __init__(self, inputs: ArrayLike | Callable[[], NDArray[Any]], targets: ArrayLike) -> None:
        targets = _array("targets", targets)
        check_targets(Column("targets", targets))
        self.samples = len(targets)
        self._targets = np.ascontiguousarray(targets, dtype=target_dtype(targets.dtype))
        check_finite(Column("targets", self._targets))
        self._inputs = inputs if callable(inputs) else self._checked(inputs)
        self._gatherer = Gatherer()

    def _checked(self, inputs: ArrayLike) -> NDArray[Any]:
        array = _array("inputs", inputs)
        check_inputs(Column("inputs", array))
        if len(array) != self.samples:
            raise UsageError(f"targets: {self.samples} targets, expected {len(array)} as in inputs")
        with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite, and is found
            array = np.ascontiguousarray(array, dtype=input_dtype(array.dtype))
        check_finite(Column("inputs", array))
        return array

    def check_classes(self, name: str, classes: int | None) -> None:
        floats = self._targets.dtype.kind == "f"
        if floats != (classes is None):
            expected = "None: the targets are floats" if floats else "their number: the targets are labels"
            raise UsageError(f"{name}: classes are {classes}, expected {expected}")
        if classes is not None:
            check_labels(Column(f"{name}: targets", self._targets), classes)

    def as_integers(self) -> ArraySplit:
        same = copy(self)
        same._gatherer = Gatherer(integers=True)
        return same

    def load(self) -> None:
        if callable(self._inputs):
            self._inputs = self._checked(self._inputs())

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        self.load()
        return self._gatherer.take(self._inputs, self._targets, indices)  # type: ignore[arg-type]

    def checksum(self) -> str:
        """See `Split.checksum`: of all targets, too."""
        return super().checksum() + xxhash.xxh3_64_hexdigest(self._targets.data.cast("B"))
