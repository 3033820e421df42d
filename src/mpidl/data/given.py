"""Data of a script: a source for each worker, as one dataset, and what a user's function returns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, outside
from mpidl.data.dataset import PYTHON, Dataset, Source, Split, opened
from mpidl.data.indexed import Indexed
from mpidl.data.kept import methods
from mpidl.data.nested import Digest
from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError, kind_of
from mpidl.functions import FunctionName, call, check_name
from mpidl.schema import Checked, Natural

#: Data of a script: those in a list belong to a worker each.
Given = Dataset | Source | list[Any]


@dataclass(frozen=True)
class Private:
    """Sources that belong to one worker each: only that worker trains with its samples.

    The test samples of all sources form one test split, and their validation samples one validation split.

    Attributes
    ----------
    sources : sequence of Source or Dataset
        One for each worker, in their order.
    """

    sources: Sequence[Source | Dataset]

    @property
    def name(self) -> str:
        """The name of the sources, if all are of one class with files; else `PYTHON`."""
        alike = len({type(each) for each in self.sources}) == 1 and hasattr(self.sources[0], "path")
        return self.sources[0].name if alike else PYTHON

    def open(self) -> Dataset:
        """Return all data as one dataset, whose training samples have owners.

        Raises
        ------
        UsageError
            There are no sources, or they don't fit together.
        """
        if not self.sources:
            raise UsageError("data: no sources, expected one for each worker")
        for number, source in enumerate(self.sources):
            if not _is_source(source):
                raise UsageError(f"data[{number}]: expected a Dataset or a source, found {kind_of(source)}")
        indexed = [each for each in self.sources if isinstance(each, Indexed)]
        if len(indexed) == len(self.sources):
            return replace(_chained(indexed).open(), owners=_owners([len(each.train) for each in indexed]))
        return _joined([opened(each) for each in self.sources])


def as_source(data: Any) -> Dataset | Source | None:
    """Return data as they were given, but sources in a list as `Private`."""
    private = isinstance(data, list) and any(map(_is_source, data))
    return Private(data) if private else data


def _is_source(given: Any) -> bool:
    return isinstance(given, Dataset) or (hasattr(given, "open") and not isinstance(given, type))


def _owners(samples: Sequence[int]) -> NDArray[np.int32]:
    """Return the owner of each training sample, given the number of each owner's."""
    return np.repeat(np.arange(len(samples), dtype=np.int32), samples)


def _joined(datasets: Sequence[Dataset]) -> Dataset:
    first = datasets[0]
    for number, other in enumerate(datasets):
        for what in ("input_shape", "classes"):
            found, expected = getattr(other, what), getattr(first, what)
            if found != expected and (what == "input_shape" or None in (found, expected)):
                raise UsageError(f"data of worker {number}: {what} {found}, expected {expected} as that of worker 0")
        if other.order is not None or other.kept is not None:
            raise UsageError(
                f"data of worker {number}: samplers and states are not supported in data that belong to workers"
            )
        if other.splits.keys() != first.splits.keys():
            raise UsageError(
                f"data of worker {number}: {', '.join(other.splits)}, expected {', '.join(first.splits)} as of worker 0"
            )
    classes = None if first.classes is None else max(each.classes or 0 for each in datasets)
    parts = {name: [each.splits[name] for each in datasets] for name in first.splits}
    splits: dict[str, Any] = {name: ConcatenatedSplit(each) for name, each in parts.items()}
    owners = _owners([each.train.samples for each in datasets])
    return Dataset(first.name, first.input_shape, classes, **splits, owners=owners)


class ConcatenatedSplit(Split):
    """The samples of several splits, one after another.

    Nothing is read before it is needed, so that a worker reads the training samples of its own split alone.
    """

    by_parts = True

    def __init__(self, parts: Sequence[Split]) -> None:
        self._parts, self._ends = parts, list(accumulate(part.samples for part in parts))
        self.samples, self.contiguous = self._ends[-1], all(part.contiguous for part in parts)
        self.chunk, self.lookahead = parts[0].chunk, min(part.lookahead for part in parts)

    def _within(self, indices: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]] | None:
        """Return the part that has these samples, and their indices there; None if they are of several parts."""
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= self.samples:
            raise outside(indices, 0, self.samples)
        number = bisect_right(self._ends, low)
        start = self._ends[number] - self._parts[number].samples
        return (number, indices - start) if high < self._ends[number] else None

    def release(self) -> None:
        for part in self._parts:
            part.release()

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        if (found := self._within(indices)) is not None:
            self._parts[found[0]].prefetch(found[1])

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        found = self._within(indices)
        if found is not None:
            return self._parts[found[0]].gather(found[1], epoch)
        order = np.argsort(indices, kind="stable")
        groups = np.split(indices[order], np.searchsorted(indices[order], self._ends[:-1]))
        batches = [
            part.gather(group - end + part.samples, epoch)
            for part, group, end in zip(self._parts, groups, self._ends, strict=True)
            if len(group)
        ]
        places = np.argsort(order)
        inputs, targets = (_stacked(list(each), places) for each in list(zip(*batches, strict=True))[:2])
        return Batch(inputs, targets)

    def checksum(self) -> str:
        """Return a checksum of the checksums of the parts, and free what the parts have read for them."""
        digest = Digest(self.samples)
        for part in self._parts:
            digest.update(part.checksum())
            part.release()
        return digest.text()

    def copy(self) -> ConcatenatedSplit:
        return ConcatenatedSplit([part.copy() for part in self._parts])

    def as_integers(self) -> ConcatenatedSplit:
        return ConcatenatedSplit([part.as_integers() for part in self._parts])

    def as_double(self) -> ConcatenatedSplit:
        return ConcatenatedSplit([part.as_double() for part in self._parts])

    def check_classes(self, name: str, classes: int | None) -> None:
        for number, part in enumerate(self._parts):
            part.check_classes(f"{name} of worker {number}", classes)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        found = []
        for part, end in zip(self._parts, self._ends, strict=True):
            first = end - part.samples
            if start < end and first < stop:
                found.append(part.labels(max(0, start - first), min(part.samples, stop - first)))
        return None if any(each is None for each in found) else np.concatenate(found)  # type: ignore[arg-type]


def _stacked(parts: list[Any], places: NDArray[np.int64]) -> Any:
    """Return the samples of several parts, one part after another, in the order of their `places`."""
    if isinstance(parts[0], Ragged):
        return Ragged.joined(parts).take(places)
    return np.concatenate(parts)[places]


class ConcatenatedSamples:
    """Several sets of samples with ``__len__`` and ``__getitem__``, one after another."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts, self._ends = parts, list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        number = bisect_right(self._ends, index)
        return self._parts[number][index - (self._ends[number - 1] if number else 0)]


def _chained(sources: Sequence[Indexed]) -> Indexed:
    """Return the data of several sources as one; UsageError if they don't fit together."""
    first = sources[0]
    for number, source in enumerate(sources):
        for name in ("collate", "weight", "classes", "workers"):
            if getattr(source, name) != getattr(first, name):
                raise UsageError(
                    f"data[{number}]: Indexed.{name} differs from that of data[0], expected the same for all"
                )
        for name in ("test", "validation"):
            if (getattr(source, name) is None) != (getattr(first, name) is None):
                raise UsageError(f"data[{number}]: Indexed.{name} is given for some, expected it for all or none")
        if source.sampler is not None or methods(source.train) is not None:
            what = "a sampler" if source.sampler is not None else "a state"
            raise UsageError(f"data[{number}]: its samples have {what}, expected none in data that belong to workers")
    names = [name for name in ("train", "test", "validation") if getattr(first, name) is not None]
    chained: dict[str, Any] = {name: ConcatenatedSamples([getattr(each, name) for each in sources]) for name in names}
    return replace(first, **chained)


@dataclass(frozen=True)
class Factory(Checked):
    """Data returned by a user's function; ``source`` needn't be given.

    Attributes
    ----------
    factory : str
        ``"module:function"``: a function without arguments that returns a `Dataset` or a source, such as `Indexed`, or
        a list with one for each worker. The module may be in the current directory.
    workers : int, optional
        Number of processes per training rank that make an `Indexed`'s batches, in place of its own number.
    """

    name: ClassVar[str] = "factory"
    factory: FunctionName
    workers: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("factory", self.factory)

    def open(self) -> Dataset:
        returned = call("data.factory", self.factory, "no arguments")
        data: Any = as_source(returned)
        where = f"{self.factory} returned {kind_of(returned)}"
        if isinstance(data, type) or not (isinstance(data, Dataset) or hasattr(data, "open")):
            raise UsageError(
                f"data.factory: {where}, expected a Dataset or a source, such as mpidl.Indexed(train, test)"
            )
        if self.workers is not None:
            if not isinstance(data, Indexed):
                raise UsageError(f"data.workers: {self.workers}, but {where}: only mpidl.Indexed has workers")
            data = replace(data, workers=self.workers)
        return opened(data)
