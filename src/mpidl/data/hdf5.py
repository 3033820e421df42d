"""HDF5 files of any size: a portion is read at once, in the background, while the one before it is used."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.dataset import Column, Dataset, Gatherer, Split, check, input_dtype, target_dtype
from mpidl.errors import MpidlError, UsageError

KEYS = ("train/x", "train/y", "test/x", "test/y")


@dataclass(frozen=True)
class Hdf5:
    """A file with train/x, train/y, test/x and test/y; it may be larger than memory.

    x is (samples, ...) of floats, used as they are (as float32), or of bytes, scaled to [0, 1]. y is (samples,) of
    integers, class ids, or (samples, outputs) of floats. In memory are two portions per split.

    Attributes
    ----------
    path : str
        The file.
    classes : int or None
        Class ids are in [0, classes); None: one more than the largest of train/y.
    """

    name: ClassVar[str] = "hdf5"
    path: str
    classes: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def open(self) -> Dataset:
        columns = open_columns(Path(self.path).expanduser())
        train, test = (columns["train/x"], columns["train/y"]), (columns["test/x"], columns["test/y"])
        input_shape, classes = check(train, test, self.classes)
        return Dataset(self.name, input_shape, classes, Hdf5Split(*train), Hdf5Split(*test))


def open_columns(path: Path) -> dict[str, Column]:
    """Return the four datasets of an HDF5 file, which stays open as long as one of them is in use.

    Raises
    ------
    UsageError
        No such file, not HDF5, or a dataset is missing.
    """
    import h5py

    if not path.is_file():
        found = "not a file" if path.exists() else "no such file"
        raise UsageError(f"data.path: {path}: {found}, expected an HDF5 file")
    try:
        # Nobody writes it: many ranks needn't ask the file system for locks.
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise UsageError(f"data.path: {path}: not a sound HDF5 file ({_line(error)})") from None
    for key in KEYS:
        if not isinstance(file.get(key), h5py.Dataset):
            raise UsageError(f"{path}: no dataset {key}, expected {', '.join(KEYS)}")
    return {key: Column(f"{path}: {key}", file[key]) for key in KEYS}


@dataclass
class _Block:
    """Samples [start, stop) in memory, once `reading` is done."""

    start: int = 0
    stop: int = 0
    inputs: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    targets: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    reading: Future[None] | None = None


class Hdf5Split(Split):
    """Samples of an HDF5 file, read block by block.

    Parameters
    ----------
    inputs, targets : Column
        Of h5py datasets.
    """

    contiguous = True

    def __init__(self, inputs: Column, targets: Column) -> None:
        self._inputs = inputs
        self._targets = targets
        self.samples = inputs.values.shape[0]
        self._gatherer = Gatherer()
        # The last one was used last; a new block is read over the first.
        self._blocks = [_Block(), _Block()]
        self._reader: ThreadPoolExecutor | None = None

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read a contiguous portion in the background; other sets of samples are left to `gather`."""
        start, stop = int(indices.min()), int(indices.max()) + 1
        if stop - start != len(indices) or any(block.start == start and block.stop == stop for block in self._blocks):
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        block = self._blocks[0]
        self._blocks.reverse()
        block.start, block.stop = start, stop
        block.reading = self._reader.submit(self._fill, block, start, stop)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        low, high = int(indices.min()), int(indices.max())
        for block in self._blocks:
            if block.reading is not None and block.start <= low and high < block.stop:
                if block is not self._blocks[-1]:
                    self._blocks.reverse()
                block.reading.result()
                return self._gatherer.take(block.inputs, block.targets, indices, block.start)
        return self._gather_directly(indices, low, high)

    def _gather_directly(self, indices: NDArray[np.int64], low: int, high: int) -> Batch:
        if low < 0 or high >= self.samples:
            raise IndexError(f"samples {low} to {high}: outside [0, {self.samples})")
        rows: Any = slice(low, high + 1)
        if high - low >= len(indices):
            rows, indices = np.unique(indices, return_inverse=True)
            low = 0
        inputs, targets = (
            _read(column, rows, dtype)
            for column, dtype in (
                (self._inputs, input_dtype(self._inputs.values.dtype)),
                (self._targets, target_dtype(self._targets.values.dtype)),
            )
        )
        return self._gatherer.take(inputs, targets, indices, low)

    def _fill(self, block: _Block, start: int, stop: int) -> None:
        block.inputs = _read_into(block.inputs, self._inputs, start, stop, input_dtype)
        block.targets = _read_into(block.targets, self._targets, start, stop, target_dtype)
