"""Data of the user's own: samples by number, from anything with ``__len__`` and ``__getitem__``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, Prepared, outside
from mpidl.data.collation import BatchMaker
from mpidl.data.dataset import PYTHON, Dataset, Split
from mpidl.data.kept import KeptState, methods
from mpidl.data.nested import Digest
from mpidl.data.ragged import Ragged
from mpidl.data.sampling import SampledOrder
from mpidl.data.workers import Task, Workers, pickled, received
from mpidl.errors import MpidlError, UsageError, kind_of, quoted, raised
from mpidl.functions import same_random_numbers
from mpidl.schema import Count, Natural, convert

SAMPLES_PER_CHECKSUM = 16
#: Batches that each worker makes ahead.
AHEAD = 2


@dataclass(frozen=True)
class Indexed:
    """Data with ``__len__`` and ``__getitem__``, such as a ``torch.utils.data.Dataset``.

    Batches are made ahead, by a thread or by `workers` processes. Each sample is read once per epoch and not converted.

    Parameters
    ----------
    train, test, validation
        The samples to train with and, optionally, those of a test at the end and of an evaluation after each epoch. A
        sample is (input, target): two arrays, PyTorch tensors or numbers of one shape for all samples, bags of ids,
        each as ``Ragged.of([ids])``, or tuples or mappings of these; or a mapping of inputs with the target under
        ``labels``, ``label`` or ``label_ids``, as Hugging Face's; with `collate`, anything it accepts.
        Training data with ``state()`` and ``load_state(state)``, or ``state_dict()`` and ``load_state_dict(state)``,
        have a state of numbers and arrays by name, which checkpoints hold for each replica; no batch is made ahead.
    collate : callable, optional
        Takes a list of samples and returns the batch: (inputs, targets), (inputs, targets, weight), a mapping with
        labels, or a `Batch`, in the form that the model needs. The default stacks arrays.
    weight : callable, optional
        Takes inputs and targets of a batch and returns its weight, above 0: its number of tokens or atoms, say. The
        default is the number of samples.
    classes : int, optional
        Targets are class ids in [0, classes). Only networks of layers need it.
    workers : int
        Number of processes per training rank that make batches; 0 for a thread. Processes receive the data and the
        functions by pickle, and import the script, which therefore calls ``mpidl.train`` below
        ``if __name__ == "__main__":``. They seed the generators of Python, NumPy and PyTorch from a sample's index and
        the epoch, so that random changes are the same in each run; a thread doesn't.
    sampler : iterable with ``__len__`` or callable, optional
        Yields the indices of an epoch's training samples in their order, such as a sampler of ``torch.utils.data``, or
        returns them for an epoch, from 0. It draws random numbers from the generators of Python, NumPy or PyTorch, or
        from its ``generator``, which are seeded by ``run.seed`` and the epoch. The default is a permutation.

    Raises
    ------
    UsageError
        The data or the sampler have no length, or the first sample can't be read.

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
    test: Any = None
    collate: Callable[..., Any] | None = None
    weight: Callable[..., Any] | None = None
    classes: int | None = None
    workers: int = 0
    validation: Any = None
    sampler: Any = None

    def __post_init__(self) -> None:
        for name, annotation in (("classes", Count | None), ("workers", Natural)):
            object.__setattr__(self, name, convert(getattr(self, name), annotation, f"Indexed.{name}"))
        for name in ("collate", "weight"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise UsageError(f"Indexed.{name}: expected a function, found {quoted(function)}")

    def open(self) -> Dataset:
        """Return the dataset; without a collate function, its input shape is that of the first sample."""
        others = {"validation": self.validation, "test": self.test}
        data = {"training": self.train} | {name: each for name, each in others.items() if each is not None}
        maker = BatchMaker(data, self.collate, self.weight, self.classes)
        kept = None if methods(self.train) is None else KeptState(self.train, "data: the training data")
        if kept is not None and self.workers:
            raise UsageError(f"data.workers: {self.workers}, but the training data have a state, expected 0")
        # What a dataset opens when it is first read, such as a file, can't be sent to worker processes.
        read = received(pickled(maker)) if self.workers else maker
        samples = {name: _length(name, each) for name, each in read.splits.items()}
        shape = None
        if self.collate is None and samples["training"]:
            try:
                with same_random_numbers():
                    inputs = read.make("training", np.zeros(1, np.int64)).inputs
            except MpidlError as error:
                raise UsageError(str(error)) from error.__cause__
            arrays = isinstance(inputs, np.ndarray | Ragged)
            shape = inputs.shape[1:] if arrays and inputs.dtype.kind in "biuf" else None
        workers = Workers(maker, self.workers) if self.workers else InThread(maker)
        splits = {name: IndexedSplit(name, samples[name], workers) for name in data}
        splits["training"].targets = getattr(read.splits["training"], "targets", None)
        if kept is not None:
            splits["training"].lookahead = 0
        order = None if self.sampler is None else SampledOrder(self.sampler, samples["training"])
        train, test, validation = splits["training"], splits.get("test"), splits.get("validation")
        return Dataset(self.name, shape, self.classes, train, test, validation, order=order, kept=kept)


def _length(name: str, data: Any) -> int:
    of_torch = sys.modules.get("torch.utils.data")
    if of_torch is not None and getattr(type(data), "__getitem__", None) is of_torch.Dataset.__getitem__:
        kind = "an IterableDataset" if isinstance(data, of_torch.IterableDataset) else kind_of(data)
        expected = "expected samples by number (__getitem__): list(data), if they fit in memory"
        raise UsageError(f"data: {name}: found {kind}, {expected}")
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UsageError(f"data: {name}: found {kind_of(data)}, expected one with __len__ and __getitem__")
    try:
        return len(data)
    except Exception as error:
        raise UsageError(f"data: {name}: __len__ {raised(error)}") from error


class InThread:
    """A thread that makes the batches, in place of `Workers`."""

    count = 0

    def __init__(self, maker: BatchMaker) -> None:
        self._maker, self._thread = maker, ThreadPoolExecutor(1, "indexed")

    def start(self) -> None:
        """Do nothing: the thread starts with the first batch."""

    def submit(self, split: str, indices: NDArray[np.int64], epoch: int = 0) -> Future[Batch]:
        return self._thread.submit(self._maker.make, split, indices)


class IndexedSplit(Split):
    """One of the splits of an `Indexed`, made into batches ahead by its workers.

    `targets` are those of all samples, as datasets of torchvision have them, if they are known before they are read.
    """

    by_parts = True
    targets: Any = None

    def __init__(self, name: str, samples: int, workers: Workers | InThread) -> None:
        self.samples, self.lookahead = samples, AHEAD * max(1, workers.count)
        self._name, self._workers = name, workers
        self._prepared: Prepared[Future[Batch] | Task] = Prepared()

    def load(self) -> None:
        self._workers.start()

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        if self.lookahead:
            self._prepared.add(indices, epoch, self._workers.submit(self._name, indices, epoch))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        prepared = self._prepared.claim(indices, epoch)
        if prepared is not None:
            return prepared.result()
        if indices.min() < 0 or indices.max() >= self.samples:
            raise outside(indices, 0, self.samples)
        return self._workers.submit(self._name, indices, epoch).result()

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        try:
            found = np.asarray(self.targets)
        except Exception:  # arrays and tensors of other libraries raise all kinds of errors
            return None
        return found[start:stop] if found.shape == (self.samples,) and found.dtype.kind in "iu" else None

    def copy(self) -> IndexedSplit:
        return IndexedSplit(self._name, self.samples, self._workers)

    def checksum(self) -> str:
        """Return a checksum of some samples, or of their number alone if they differ from one reading to the next."""
        first, second = self._checksum(), self._checksum()
        return first if first == second else Digest(self.samples).text()

    def _checksum(self) -> str:
        digest = Digest(self.samples)
        some = np.linspace(0, self.samples - 1, min(SAMPLES_PER_CHECKSUM, self.samples), dtype=np.int64)
        digest.update(self.gather(some))
        return digest.text()
