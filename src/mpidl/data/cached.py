"""Splits whose samples are cached in memory: of this process, of its node, or of all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, Gatherer, Prepared
from mpidl.data.dataset import ArraySplit, Dataset, Split
from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, chunks, share

#: Bytes of inputs that are read at a time.
BLOCK_BYTES = 1 << 23
#: Batches that are requested ahead where samples are on several nodes.
AHEAD = 2


class SampleFormat(NamedTuple):
    """Shape and dtype of the inputs and the targets of one sample."""

    inputs: tuple[tuple[int, ...], np.dtype[Any]]
    targets: tuple[tuple[int, ...], np.dtype[Any]]


class Pending(Protocol):
    """Samples of a batch that have been requested."""

    def result(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Wait for the samples, and return arrays of inputs and of targets with the batch's rows in them."""
        ...

    def release(self) -> None:
        """Free the arrays that `result` has returned."""
        ...


class Store(Protocol):
    """The samples of a split that are spread over several nodes."""

    def ask(self, indices: NDArray[np.int64]) -> Pending:
        """Request samples, each in [0, samples), without waiting for them."""
        ...


def part(samples: int, chunk: int, number: int, count: int) -> Range:
    """Return part `number` of a split divided into `count` consecutive parts, which begin at chunks.

    Their numbers of chunks differ by at most one; the larger ones come first.
    """
    own = share(-(-samples // chunk), number, count)
    return Range(*(min(samples, bound * chunk) for bound in own))


class Cached:
    """All samples of a split, once they have been read.

    Parameters
    ----------
    split : Split
        Their source. Nothing else gathers from it.
    distributed : bool
        Whether ranks of several nodes cache a part each.

    Attributes
    ----------
    inputs, targets : array or None
        Integers are unconverted.
    store : Store or None
        The samples, if they are spread over several nodes.
    by_parts, chunk
        As of the split.
    """

    def __init__(self, split: Split, distributed: bool = False) -> None:
        self._split, self._reader, self.samples = split, split.as_integers(), split.samples
        self.by_parts, self.chunk, self.distributed = split.by_parts, split.chunk, distributed
        self.inputs: NDArray[Any] | None = None
        self.targets: NDArray[Any] | None = None
        self.store: Store | None = None

    def form(self) -> SampleFormat:
        """Return the form of the first sample; MpidlError if it can't be read, or isn't made of arrays."""
        batch = self._reader.gather(np.zeros(1, np.int64))
        arrays = batch.inputs, batch.targets
        if batch.weight is not None or not all(isinstance(each, np.ndarray) for each in arrays):
            keep = "distributed" if self.distributed else "memory"
            raise UsageError(f"data.keep: {keep!r} needs batches of arrays without weights, expected 'files'")
        inputs, targets = ((each.shape[1:], each.dtype) for each in arrays)
        return SampleFormat(inputs, targets)

    def blocks(self, part: Range, form: SampleFormat) -> list[Range]:
        """Return the blocks in which a part of the samples is read: whole chunks, together about `BLOCK_BYTES`."""
        (shape, dtype), _ = form
        in_chunk = self.chunk * dtype.itemsize * prod(shape)
        return chunks(part, self.chunk * max(1, BLOCK_BYTES // in_chunk))

    def read(self, part: Range, form: SampleFormat) -> Iterator[tuple[Range, Batch]]:
        """Yield the blocks of a part of the samples, each of which may overwrite the last; MpidlError if one is bad."""
        for block in self.blocks(part, form):
            yield block, self._reader.gather(np.arange(*block))

    def load(self) -> None:
        """Read all samples into this process's memory, unless they are cached."""
        if self.inputs is None and self.store is None:
            form = self.form()
            inputs, targets = (np.empty((self.samples, *shape), dtype) for shape, dtype in form)
            for block, batch in self.read(Range(0, self.samples), form):
                inputs[slice(*block)], targets[slice(*block)] = batch.inputs, batch.targets
            self.use(inputs, targets)

    def use(self, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
        """Use arrays that hold all samples, and free what the split itself has read."""
        self.inputs, self.targets = inputs, targets
        self._free_split()

    def use_store(self, store: Store) -> None:
        """Use samples that are spread over several nodes, and free what the split itself has read."""
        self.store = store
        self._free_split()

    def _free_split(self) -> None:
        self._split.release()
        self._reader = self._split.as_integers()

    def release(self) -> None:
        """Free the samples; they are read again if necessary."""
        self.inputs = self.targets = self.store = None


class CachedSplit(Split):
    """The samples of another split, cached in memory.

    Parameters
    ----------
    cached : Cached
        Its samples, which several such splits may share.
    integers, double : bool
        Whether integer inputs stay integers, and whether float64 numbers of `split` stay float64.
    """

    def __init__(self, split: Split, cached: Cached, integers: bool = False, double: bool = False) -> None:
        self.samples, self.contiguous = split.samples, split.contiguous
        self._split, self.cached = split, cached
        self.lookahead = AHEAD if cached.distributed else 1
        self._integers, self._double = integers, double
        self._gatherer = Gatherer(integers, double)
        self._prepared: Prepared[Pending] = Prepared()

    def load(self) -> None:
        self.cached.load()

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        if self.cached.store is not None:
            self._prepared.add(indices, 0, self.cached.store.ask(indices))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        cached = self.cached
        if cached.store is None:
            cached.load()
            return self._gatherer.take(cached.inputs, cached.targets, indices)  # type: ignore[arg-type]
        pending = self._prepared.claim(indices, 0) or cached.store.ask(indices)
        batch = self._gatherer.take(*pending.result())
        pending.release()
        return batch

    def copy(self) -> CachedSplit:
        return CachedSplit(self._split, self.cached, self._integers, self._double)

    def as_integers(self) -> CachedSplit:
        return CachedSplit(self._split, self.cached, True, self._double)

    def as_double(self) -> CachedSplit:
        double = self._split.as_double()
        return CachedSplit(double, Cached(double, self.cached.distributed), self._integers, True)

    def check_classes(self, name: str, classes: int | None) -> None:
        self._split.check_classes(name, classes)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        return self._split.labels(start, stop)

    def checksum(self) -> str:
        """Return the checksum of the split itself."""
        own = super().checksum()
        return own + self._split.checksum_of_targets() if isinstance(self._split, ArraySplit) else own


def in_memory(dataset: Dataset, distributed: bool = False) -> Dataset:
    """Return a dataset with all samples cached in memory: on each node or, if `distributed`, spread over all nodes."""
    return dataset.changed(lambda split: CachedSplit(split, Cached(split, distributed)))
