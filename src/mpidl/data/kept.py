"""Splits whose samples are all kept in memory: that of this process, of its node, or of all nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.dataset import ArraySplit, Dataset, Split
from mpidl.data.gatherer import Gatherer
from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, chunks, share

#: Bytes of inputs that are read at a time.
BLOCK_BYTES = 1 << 23
#: Batches that are asked for ahead where samples lie on several nodes.
AHEAD = 2


class Form(NamedTuple):
    """Shape and dtype of the inputs and the targets of one sample."""

    inputs: tuple[tuple[int, ...], np.dtype[Any]]
    targets: tuple[tuple[int, ...], np.dtype[Any]]


class Coming(Protocol):
    """A batch's samples that have been asked for."""

    def result(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Return arrays of inputs and of targets, and the batch's rows in them, once its samples have arrived."""
        ...

    def release(self) -> None:
        """Give back what `result` has returned."""
        ...


class Store(Protocol):
    """The samples of a split where they lie on several nodes."""

    def ask(self, indices: NDArray[np.int64]) -> Coming:
        """Ask for samples, each in [0, samples), without waiting for them."""
        ...


def part(samples: int, chunk: int, number: int, count: int) -> Range:
    """Return part `number` of `count` consecutive ones of a split, which begin at chunks.

    Their numbers of chunks differ by at most one; the larger ones come first.

    Parameters
    ----------
    samples : int
    chunk : int
        See `Split`.
    number, count : int
    """
    own = share(-(-samples // chunk), number, count)
    return Range(*(min(samples, bound * chunk) for bound in own))


class Kept:
    """All samples of a split, once they have been read.

    Parameters
    ----------
    split : Split
        Where they are read from. Nothing else gathers from it.
    distributed : bool
        Whether ranks of several nodes keep them together.

    Attributes
    ----------
    inputs, targets : array or None
        Integers as they are; see `Gatherer.take`.
    store : Store or None
        Where the samples are that several nodes keep.
    by_parts : bool
        See `Split`.
    chunk : int
        See `Split`.
    """

    def __init__(self, split: Split, distributed: bool = False) -> None:
        self._split, self._reader, self.samples = split, split.as_integers(), split.samples
        self.by_parts, self.chunk, self.distributed = split.by_parts, split.chunk, distributed
        self.inputs: NDArray[Any] | None = None
        self.targets: NDArray[Any] | None = None
        self.store: Store | None = None

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
            keep = "distributed" if self.distributed else "memory"
            raise UsageError(f"data.keep: {keep!r}, but batches are not arrays without weights, expected 'files'")
        inputs, targets = ((each.shape[1:], each.dtype) for each in arrays)
        return Form(inputs, targets)

    def blocks(self, part: Range, form: Form) -> list[Range]:
        """Return the blocks in which a part of the samples is read: whole chunks of about `BLOCK_BYTES`."""
        (shape, dtype), _ = form
        in_chunk = self.chunk * dtype.itemsize * prod(shape)
        return chunks(part, self.chunk * max(1, BLOCK_BYTES // in_chunk))

    def read(self, part: Range, form: Form) -> Iterator[tuple[Range, Batch]]:
        """Yield the blocks of a part of the samples; the next one may overwrite the last.

        Raises
        ------
        MpidlError
            A sample can't be read, or is not finite.
        """
        for block in self.blocks(part, form):
            yield block, self._reader.gather(np.arange(*block))

    def load(self) -> None:
        """Read all samples into memory of this process, unless they are in memory."""
        if self.inputs is None and self.store is None:
            form = self.form()
            inputs, targets = (np.empty((self.samples, *shape), dtype) for shape, dtype in form)
            for block, batch in self.read(Range(0, self.samples), form):
                inputs[slice(*block)], targets[slice(*block)] = batch.inputs, batch.targets
            self.use(inputs, targets)

    def use(self, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
        """Take arrays that hold all samples. What the split itself has read is given back."""
        self.inputs, self.targets = inputs, targets
        self._forget()

    def use_store(self, store: Store) -> None:
        """Take samples that lie on several nodes. What the split itself has read is given back."""
        self.store = store
        self._forget()

    def _forget(self) -> None:
        self._split.release()
        self._reader = self._split.as_integers()

    def release(self) -> None:
        """Let go of the samples; whoever needs them again reads them again."""
        self.inputs = self.targets = self.store = None


class _Prepared(NamedTuple):
    indices: NDArray[np.int64]
    coming: Coming


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
        self.lookahead = AHEAD if self.kept.distributed else 1
        self._integers, self._double = integers, double
        self._gatherer = Gatherer(integers, double)
        self._prepared: deque[_Prepared] = deque()

    def load(self) -> None:
        self.kept.load()

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        if self.kept.store is not None:
            self._prepared.append(_Prepared(indices, self.kept.store.ask(indices)))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        kept = self.kept
        if kept.store is None:
            kept.load()
            return self._gatherer.take(kept.inputs, kept.targets, indices)  # type: ignore[arg-type]
        coming = self._claim(indices) or kept.store.ask(indices)
        batch = self._gatherer.take(*coming.result())
        coming.release()
        return batch

    def _claim(self, indices: NDArray[np.int64]) -> Coming | None:
        """Return the samples if they have been asked for."""
        for place, prepared in enumerate(self._prepared):
            if np.array_equal(prepared.indices, indices):
                del self._prepared[place]
                return prepared.coming
        return None

    def copy(self) -> KeptSplit:
        return KeptSplit(self._split, self.kept, self._integers, self._double)

    def as_integers(self) -> KeptSplit:
        return KeptSplit(self._split, self.kept, True, self._double)

    def as_double(self) -> KeptSplit:
        double = self._split.as_double()
        return KeptSplit(double, Kept(double, self.kept.distributed), self._integers, True)

    def check_classes(self, name: str, classes: int | None) -> None:
        self._split.check_classes(name, classes)

    def checksum(self) -> str:
        """See `Split.checksum`: that of the split itself."""
        own = super().checksum()
        return own + self._split.checksum_of_targets() if isinstance(self._split, ArraySplit) else own


def in_memory(dataset: Dataset, distributed: bool = False) -> Dataset:
    """Return a dataset with all its samples in memory: of each node or, if `distributed`, of all nodes together."""

    def kept(split: Split) -> KeptSplit:
        return KeptSplit(split, Kept(split, distributed))

    validation = None if dataset.validation is None else kept(dataset.validation)
    return replace(dataset, train=kept(dataset.train), test=kept(dataset.test), validation=validation)
