"""HDF5 files of any size: each portion is read in the background while the one before it is used."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.columns import Column, check, check_finite, input_dtype, target_dtype
from mpidl.data.dataset import Dataset, Split
from mpidl.data.gatherer import Gatherer, outside
from mpidl.errors import MpidlError, UsageError
from mpidl.paths import user_path
from mpidl.schema import Checked

if TYPE_CHECKING:
    import h5py

KEYS = ("train/x", "train/y", "test/x", "test/y")


@dataclass(frozen=True)
class Hdf5(Checked):
    """A file with train/x, train/y, test/x and test/y, which may be larger than memory.

    x is (samples, ...) of floats, converted to float32, of bytes, scaled to [0, 1], or of other integers, used as they
    are; all integers are used as they are where an embedding takes them. y is (samples,) of integers
    (class ids) or (samples, outputs) of floats. Two portions of a split are in memory at a time.

    Attributes
    ----------
    path : str
        Path of the file.
    classes : int or None
        Class ids are in [0, classes); None for one more than the largest in train/y.
    """

    name: ClassVar[str] = "hdf5"
    path: str
    classes: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def open(self) -> Dataset:
        file = user_path(self.path)
        columns = open_columns(file)
        train, test = (columns["train/x"], columns["train/y"]), (columns["test/x"], columns["test/y"])
        try:
            input_shape, classes = check(train, test, self.classes)
        except OSError as error:
            raise UsageError(f"data.path: {file}: labels can't be read ({_first_line(error)})") from None
        return Dataset(self.name, input_shape, classes, Hdf5Split(*train), Hdf5Split(*test))


def open_columns(path: Path) -> dict[str, Column]:
    """Return the four datasets of an HDF5 file, which stays open as long as any of them is in use.

    Raises
    ------
    UsageError
        If there is no such file, it isn't HDF5, or a dataset is missing.
    """
    import h5py

    if not path.is_file():
        found = "not a file" if path.exists() else "no such file"
        raise UsageError(f"data.path: {path}: {found}, expected an HDF5 file")
    try:
        # The file is only read: many ranks need not ask the file system for locks.
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise UsageError(f"data.path: {path}: not a valid HDF5 file ({_first_line(error)})") from None
    for key in KEYS:
        if not isinstance(file.get(key), h5py.Dataset):
            raise UsageError(f"{path}: no dataset {key}, expected {', '.join(KEYS)}")
        if file[key].is_virtual:
            _check_sources(path, key, file[key])
    return {key: Column(f"{path}: {key}", file[key]) for key in KEYS}


def _check_sources(path: Path, key: str, dataset: h5py.Dataset) -> None:
    """Raise UsageError if a part of a virtual dataset is missing, which HDF5 would read as zeros."""
    import h5py

    sources = {(source.file_name, source.dset_name) for source in dataset.virtual_sources()}
    for name, inner in sorted(sources):
        places = [path] if name == "." else [path.parent / name, Path(name)]  # where HDF5 looks
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise UsageError(f"{path}: {key} is a virtual dataset, and its source {name} is missing")
        with h5py.File(found, "r", locking=False) as file:
            if not isinstance(file.get(inner), h5py.Dataset):
                raise UsageError(f"{path}: {key} is a virtual dataset, and its source {found} has no dataset {inner}")


class _Block:
    """Memory for samples [start, stop) of a split, as large as the largest block so far."""

    def __init__(self, inputs: Column, targets: Column) -> None:
        self.start = self.stop = 0
        self.reading: Future[None] | None = None
        self._columns = inputs, targets
        self.inputs = np.empty((0, *inputs.values.shape[1:]), input_dtype(inputs.values.dtype))
        self.targets = np.empty((0, *targets.values.shape[1:]), target_dtype(targets.values.dtype))

    def read(self, start: int, stop: int) -> None:
        size = stop - start
        if size > len(self.inputs):
            self.inputs = np.empty((size, *self.inputs.shape[1:]), self.inputs.dtype)
            self.targets = np.empty((size, *self.targets.shape[1:]), self.targets.dtype)
        for column, memory in zip(self._columns, (self.inputs, self.targets), strict=True):
            try:
                column.values.read_direct(memory, np.s_[start:stop], np.s_[:size])
            except OSError as error:
                raise _unreadable(column, start, stop, error) from None
            _check_read(Column(column.name, memory[:size]), start)


class Hdf5Split(Split):
    """Samples of an HDF5 file, read block by block.

    Parameters
    ----------
    inputs, targets : Column
        Columns of h5py datasets.
    integers : bool
        Whether integer inputs stay as they are; see `as_integers`.
    """

    contiguous = True

    def __init__(self, inputs: Column, targets: Column, integers: bool = False) -> None:
        self.samples = inputs.values.shape[0]
        self._columns = inputs, targets
        self._gatherer = Gatherer(integers)
        # The last block is the newest, in use or needed next; a new portion overwrites the first.
        self._portions = [_Block(inputs, targets), _Block(inputs, targets)]
        self._other = _Block(inputs, targets)
        self._reader: ThreadPoolExecutor | None = None

    def as_integers(self) -> Hdf5Split:
        return Hdf5Split(*self._columns, integers=True)

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read a contiguous portion in the background; leave any other set of samples to `gather`."""
        start, stop = int(indices.min()), int(indices.max()) + 1
        if stop - start != len(indices):
            return
        newest = self._portions[-1]
        if (newest.start, newest.stop) == (start, stop):
            return
        self._portions.reverse()
        block = self._portions[-1]
        if (block.start, block.stop) == (start, stop):
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        block.start, block.stop = start, stop
        block.reading = self._reader.submit(block.read, start, stop)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        low, high = int(indices.min()), int(indices.max())
        for block in self._portions:
            if block.reading is not None and block.start <= low and high < block.stop:
                block.reading.result()
                return self._gatherer.take(block.inputs, block.targets, indices, block.start)
        if low < 0 or high >= self.samples:
            raise outside(indices, 0, self.samples)
        if high - low < len(indices):
            self._other.read(low, high + 1)
            return self._gatherer.take(self._other.inputs, self._other.targets, indices, low)
        return self._gather_scattered(indices)

    def _gather_scattered(self, indices: NDArray[np.int64]) -> Batch:
        rows, places = np.unique(indices, return_inverse=True)
        arrays = []
        for column, like in zip(self._columns, (self._other.inputs, self._other.targets), strict=True):
            try:
                arrays.append(column.values[rows].astype(like.dtype))
            except OSError as error:
                raise _unreadable(column, rows[0], rows[-1] + 1, error) from None
            _check_read(Column(column.name, arrays[-1]), rows[0])
        inputs, targets = arrays
        return self._gatherer.take(inputs, targets, places)


def _check_read(column: Column, first: int) -> None:
    """Raise MpidlError for a number that is not finite: the run has begun."""
    try:
        check_finite(column, first)
    except UsageError as error:
        raise MpidlError(str(error)) from None


def _unreadable(column: Column, start: int, stop: int, error: OSError) -> MpidlError:
    return MpidlError(f"{column.name}: samples {start} to {stop - 1} can't be read ({_first_line(error)})")


def _first_line(error: OSError) -> str:
    return str(error).splitlines()[0]
