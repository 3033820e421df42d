"""HDF5 files of any size: each portion is read in the background while the one before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, outside
from mpidl.data.columns import Column, check, check_finite, input_dtype, splits_of, target_dtype
from mpidl.data.dataset import ColumnSplit, Dataset
from mpidl.data.hdf5_files import first_line, found_files, open_columns
from mpidl.errors import MpidlError, UsageError
from mpidl.schema import Checked, Count


@dataclass(frozen=True)
class Hdf5(Checked):
    """Files with train/x, train/y, test/x and test/y, which may be larger than memory.

    Optional validation/x and validation/y are the validation split.

    x is (samples, ...) of floats, converted to float32 unless the model is of float64, of bytes, scaled to [0, 1], or
    of other integers, used as they are; all integers are used as they are where an embedding takes them. y is
    (samples,) of integers (class ids) or (samples, outputs) of floats. Two portions of a split are in memory at a time.

    Attributes
    ----------
    path : str or list of str
        Path of the file; or paths of several, whose samples follow one another. A path may be a pattern such as
        ``"data/*.h5"`` for all matching files, sorted. Each of several files may have only some of the splits.
    classes : int or None
        Class ids are in [0, classes); by default one more than the largest in train/y.
    """

    name: ClassVar[str] = "hdf5"
    path: str | list[str]
    classes: Count | None = None

    def open(self) -> Dataset:
        columns = open_columns(found_files(self.path))
        splits = splits_of(columns)
        try:
            input_shape, classes = check(splits, self.classes)
        except OSError as error:
            name = columns["train/y"].name.partition(": ")[0]
            raise UsageError(f"data.path: {name}: labels can't be read ({first_line(error)})") from None
        return Dataset(self.name, input_shape, classes, *(Hdf5Split(*each) for each in splits))


class _Block:
    """Memory for samples [start, stop) of a split, as large as the largest block so far."""

    def __init__(self, inputs: Column, targets: Column, double: bool) -> None:
        self.start = self.stop = 0
        self.reading: Future[None] | None = None
        self._columns = inputs, targets
        self.inputs = np.empty((0, *inputs.values.shape[1:]), input_dtype(inputs.values.dtype, double))
        self.targets = np.empty((0, *targets.values.shape[1:]), target_dtype(targets.values.dtype, double))

    def read(self, start: int, stop: int) -> None:
        size = stop - start
        if size > len(self.inputs):
            self.inputs = np.empty((size, *self.inputs.shape[1:]), self.inputs.dtype)
            self.targets = np.empty((size, *self.targets.shape[1:]), self.targets.dtype)
        for column, memory in zip(self._columns, (self.inputs, self.targets), strict=True):
            with _reading(column, start, stop):
                column.values.read_direct(memory, np.s_[start:stop], np.s_[0:size])
                check_finite(Column(column.name, memory[:size]), range(start, stop))


class Hdf5Split(ColumnSplit):
    """Samples of HDF5 datasets, read block by block."""

    contiguous = by_parts = True

    def __init__(self, inputs: Column, targets: Column, integers: bool = False, double: bool = False) -> None:
        super().__init__(inputs, targets, integers=integers, double=double)
        self.chunk = (inputs.values.chunks or (1,))[0]
        # The last block is the newest, in use or needed next; a new portion overwrites the first.
        self._portions = [_Block(inputs, targets, double), _Block(inputs, targets, double)]
        self._other = _Block(inputs, targets, double)
        self._reader: ThreadPoolExecutor | None = None

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read a contiguous portion in the background; other samples are left to `gather`."""
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
            with _reading(column, rows[0], rows[-1] + 1):
                arrays.append(column.values[rows].astype(like.dtype))
                check_finite(Column(column.name, arrays[-1]), rows)
        inputs, targets = arrays
        return self._gatherer.take(inputs, targets, places)


@contextmanager
def _reading(column: Column, start: int, stop: int) -> Iterator[None]:
    """Raise MpidlError for samples that can't be read, or aren't finite, in the course of a run."""
    try:
        yield
    except OSError as error:
        raise MpidlError(f"{column.name}: samples {start} to {stop - 1} can't be read ({first_line(error)})") from None
    except UsageError as error:
        raise MpidlError(str(error)) from None
