"""Splits whose samples are all kept in memory, which the ranks of a node may share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.dataset import ArraySplit, Dataset, Split
from mpidl.data.gatherer import Gatherer
from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, chunks

#: Bytes of inputs that are read at a time.
BLOCK_BYTES = 1 << 23


class Form(NamedTuple):
    """Shape and dtype of the inputs and the targets of a split."""

    inputs: tuple[tuple[int, ...], np.dtype[Any]]
    targets: tuple[tuple[int, ...], np.dtype[Any]]


class Kept:
    """All samples of a split, once they have been read.

    Parameters
    ----------
    split : Split
        Where they are read from. Nothing else gathers from it.

    Attributes
    ----------
    inputs, targets : array or None
        Integers as they are; see `Gatherer.take`.
    by_parts : bool
        Whether a part of them can be read for less than all.
    chunk : int
        See `Split`.
    """

    def __init__(self, split: Split) -> None:
        self._split, self._reader, self.samples = split, split.as_integers(), split.samples
        self.by_parts, self.chunk = split.contiguous, split.chunk
        self.inputs: NDArray[Any] | None = None
        self.targets: NDArray[Any] | None = None

    def form(self) -> Form:
        """Return the form of the samples, after a look at the first one.

        Raises
        ------
        MpidlError
            It can't be read, or is no array.
        """
        batch = self._reader.gather(np.zeros(1, np.int64))
        arrays = batch.inputs, batch.targets
        if batch.weight is not None or not all(isinstance(each, np.ndarray) for each in arrays):
            raise UsageError("data.keep: 'memory', but batches are not arrays without weights, expected 'files'")
        inputs, targets = (((self.samples, *each.shape[1:]), each.dtype) for each in arrays)
        return Form(inputs, targets)

    def read(self, inputs: NDArray[Any], targets: NDArray[Any], part: Range) -> None:
        """Read a part of the samples into its place in arrays of the samples' form.

        Raises
        ------
        MpidlError
            A sample can't be read, or is not finite.
        """
        in_chunk = self.chunk * inputs[:1].nbytes
        for block in chunks(part, self.chunk * max(1, BLOCK_BYTES // in_chunk)):
            batch = self._reader.gather(np.arange(*block))
            inputs[slice(*block)] = batch.inputs
            targets[slice(*block)] = batch.targets

    def load(self) -> None:
        """Read all samples into memory of this process, unless they are in memory."""
        if self.inputs is None:
            form = self.form()
            inputs, targets = np.empty(*form.inputs), np.empty(*form.targets)
            self.read(inputs, targets, Range(0, self.samples))
            self.use(inputs, targets)

    def use(self, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
        """Take arrays that hold all samples. What the split itself has read is given back."""
        self.inputs, self.targets = inputs, targets
        self._split.release()
        self._reader = self._split.as_integers()

    def release(self) -> None:
        """Let go of the arrays; whoever needs them again reads them again."""
        self.inputs = self.targets = None


class KeptSplit(Split):
    """The samples of another split, kept in memory.

    Parameters
    ----------
    split : Split
    kept : Kept, optional
        Its samples, which several such splits may share.
    integers : bool
        Whether integer inputs stay as they are; see `as_integers`.
    double : bool
        Whether those of `split` are of float64; see `as_double`.
    """

    def __init__(self, split: Split, kept: Kept | None = None, integers: bool = False, double: bool = False) -> None:
        self.samples, self.contiguous = split.samples, split.contiguous
        self._split, self.kept = split, kept or Kept(split)
        self._integers, self._double = integers, double
        self._gatherer = Gatherer(integers, double)

    def load(self) -> None:
        self.kept.load()

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        kept = self.kept
        kept.load()
        return self._gatherer.take(kept.inputs, kept.targets, indices)  # type: ignore[arg-type]

    def copy(self) -> KeptSplit:
        return KeptSplit(self._split, self.kept, self._integers, self._double)

    def as_integers(self) -> KeptSplit:
        return KeptSplit(self._split, self.kept, True, self._double)

    def as_double(self) -> KeptSplit:
        return KeptSplit(self._split.as_double(), None, self._integers, True)

    def check_classes(self, name: str, classes: int | None) -> None:
        self._split.check_classes(name, classes)

    def checksum(self) -> str:
        """See `Split.checksum`: that of the split itself."""
        own = super().checksum()
        if not isinstance(self._split, ArraySplit):
            return own
        assert self.kept.targets is not None
        return own + xxhash.xxh3_64_hexdigest(self.kept.targets.data.cast("B"))


def in_memory(dataset: Dataset) -> Dataset:
    """Return a dataset with all its samples in memory."""
    validation = None if dataset.validation is None else KeptSplit(dataset.validation)
    return replace(dataset, train=KeptSplit(dataset.train), test=KeptSplit(dataset.test), validation=validation)
