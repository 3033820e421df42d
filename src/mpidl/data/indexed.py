"""Datasets of the user's own, of samples by number: anything with ``__len__`` and ``__getitem__``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import xxhash
from msgspec import Meta
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.collation import leaves
from mpidl.data.dataset import PYTHON, Count, Dataset, Split
from mpidl.data.gatherer import outside
from mpidl.data.making import BatchMaker
from mpidl.data.workers import Task, Workers
from mpidl.errors import MpidlError, UsageError, kind_of, quoted, raised
from mpidl.schema import convert

SAMPLES_PER_CHECKSUM = 16
#: Batches that are made ahead, by each worker.
AHEAD = 2


@dataclass(frozen=True)
class Indexed:
    """Data with ``__len__`` and ``__getitem__``, such as a ``torch.utils.data.Dataset``.

    Batches are made ahead: by a thread while the one before is trained on, or by `workers` processes. Samples are used
    as they are: nothing is scaled or converted. Each is read once in an epoch.

    Parameters
    ----------
    train, test
        A sample is (input, target): two arrays, PyTorch tensors or numbers of one shape for all samples, or tuples or
        mappings of such; with `collate`, whatever that takes.
    collate : callable, optional
        Takes a list of samples and returns the batch: (inputs, targets), (inputs, targets, weight) or a `Batch`, of
        whatever the model takes. The default stacks arrays.
    weight : callable, optional
        Takes inputs and targets of a batch and returns what it counts beside others, above 0: its tokens or atoms. The
        default is the number of samples.
    classes : int, optional
        Targets are class ids in [0, classes). Only a network of layers needs to know.
    workers : int
        Number of processes that make batches, for each rank that trains; 0 for a thread. Processes get the data and
        the functions by pickle, and import the script: ``mpidl.train`` then stands below
        ``if __name__ == "__main__":``. They seed the generators of Python, NumPy and PyTorch by a sample's index and
        the epoch, so that random changes are the same in each run; a thread does not.

    Raises
    ------
    UsageError
        The data have no length, or the first sample can't be read.

    Examples
    --------
    >>> class Squares:
    ...     def __len__(self):
    ...         return 10
    ...
    ...     def __getitem__(self, index):
    ...         return np.full(3, index), index % 2
    >>> dataset = Indexed(Squares(), Squares()).open()
    >>> dataset.train.gather(np.array([4, 7])).targets
    array([0, 1])
    """

    name: ClassVar[str] = PYTHON
    train: Any
    test: Any
    collate: Callable[..., Any] | None = None
    weight: Callable[..., Any] | None = None
    classes: int | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        for name, annotation in (("classes", Count | None), ("workers", Annotated[int, Meta(ge=0)])):
            object.__setattr__(self, name, convert(getattr(self, name), annotation, f"Indexed.{name}"))
        for name in ("collate", "weight"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise UsageError(f"Indexed.{name}: expected a function, found {quoted(function)}")

    def open(self) -> Dataset:
        """Return the dataset; without a collate function, its first sample is read to learn its shape."""
        data = {"training": self.train, "test": self.test}
        samples = {name: _length(name, each) for name, each in data.items()}
        maker = BatchMaker(data, self.collate, self.weight, self.classes)
        shape = None
        if self.collate is None and samples["training"]:
            try:
                inputs = maker.make("training", np.zeros(1, np.int64)).inputs
            except MpidlError as error:
                raise UsageError(str(error)) from error.__cause__
            shape = inputs.shape[1:] if isinstance(inputs, np.ndarray) else None
        workers = Workers(maker, self.workers) if self.workers else InThread(maker)
        train, test = (IndexedSplit(name, samples[name], workers) for name in data)
        return Dataset(self.name, shape, self.classes, train, test)


def _length(name: str, data: Any) -> int:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UsageError(f"data: {name}: found {kind_of(data)}, expected one with __len__ and __getitem__")
    try:
        return len(data)
    except Exception as error:
        raise UsageError(f"data: {name}: __len__ {raised(error)}") from error


class InThread:
    """A thread that makes the batches, all of them and nothing else."""

    #: Processes that make batches.
    count = 0

    def __init__(self, maker: BatchMaker) -> None:
        self._maker, self._thread = maker, ThreadPoolExecutor(1, "indexed")

    def start(self) -> None:
        """Do nothing: the thread starts with the first batch."""

    def submit(self, split: str, indices: NDArray[np.int64], epoch: int = 0) -> Future[Batch]:
        """Let the thread make a batch; see `BatchMaker.make`."""
        return self._thread.submit(self._maker.make, split, indices, epoch)


class _Prepared(NamedTuple):
    indices: NDArray[np.int64]
    epoch: int
    batch: Future[Batch] | Task


class IndexedSplit(Split):
    """Samples of a dataset of the user's own, made into batches ahead.

    Parameters
    ----------
    name : str
        ``"training"`` or ``"test"``.
    samples : int
        Number of samples.
    workers : Workers or InThread
        Make the batches.
    """

    by_parts = True

    def __init__(self, name: str, samples: int, workers: Workers | InThread) -> None:
        self.samples, self.lookahead = samples, AHEAD * max(1, workers.count)
        self._name, self._workers = name, workers
        self._prepared: deque[_Prepared] = deque()

    def load(self) -> None:
        self._workers.start()

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        self._prepared.append(_Prepared(indices, epoch, self._workers.submit(self._name, indices, epoch)))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        for place, prepared in enumerate(self._prepared):
            if prepared.epoch == epoch and np.array_equal(prepared.indices, indices):
                del self._prepared[place]
                return prepared.batch.result()
        if indices.min() < 0 or indices.max() >= self.samples:
            raise outside(indices, 0, self.samples)
        return self._workers.submit(self._name, indices, epoch).result()

    def copy(self) -> IndexedSplit:
        return IndexedSplit(self._name, self.samples, self._workers)

    def checksum(self) -> str:
        """See `Split.checksum`; only of the number of samples if these differ each time that they are read."""
        first, second = self._checksum(), self._checksum()
        return first if first == second else xxhash.xxh3_64_hexdigest(str(self.samples).encode())

    def _checksum(self) -> str:
        checksum = xxhash.xxh3_64(str(self.samples).encode())
        some = np.linspace(0, self.samples - 1, min(SAMPLES_PER_CHECKSUM, self.samples), dtype=np.int64)
        for values in leaves(self.gather(some)):
            checksum.update(values.data.cast("B"))
        return checksum.hexdigest()
