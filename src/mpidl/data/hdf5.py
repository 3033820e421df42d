"""HDF5 files of any size: each portion is read in the background while the one before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, BlockArrays, Blocks
from mpidl.data.columns import Column, check, check_finite, input_dtype, splits_of, target_dtype
from mpidl.data.dataset import ColumnSplit, Dataset
from mpidl.data.hdf5_files import first_line, found_files, open_columns
from mpidl.data.ragged import Ragged, StoredBags
from mpidl.errors import MpidlError, UsageError
from mpidl.schema import Checked, Count


@dataclass(frozen=True)
class Hdf5(Checked):
    """Files with train/x, train/y, test/x and test/y, which may be larger than memory.

    Optional validation/x and validation/y are the validation split.

    x is (samples, ...) of floats, converted to float32 unless the model is of float64, of bytes, scaled to [0, 1], or
    of other integers, used as they are; all integers are used as they are where an embedding takes them. y is
    (samples, ...) of integers (class ids) or (samples, outputs) of floats. Two portions of a split are in memory at a
    time.

    Samples that are bags of ids of varying length, `Ragged`, have their ids one after another in x, an array of
    integers, and where each bag begins and the last one ends in train/x_offsets and test/x_offsets, (samples + 1,).

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
        columns = open_columns(found_files("data.path", self.path, "HDF5 file"))
        splits = splits_of(columns)
        try:
            input_shape, classes = check(splits, self.classes)
        except OSError as error:
            name = columns["train/y"].name.partition(": ")[0]
            raise UsageError(f"data.path: {name}: labels can't be read ({first_line(error)})") from None
        return Dataset(self.name, input_shape, classes, *(Hdf5Split(*each) for each in splits))


class Hdf5Split(ColumnSplit):
    """Samples of HDF5 datasets, read block by block."""

    contiguous = by_parts = True

    def __init__(self, inputs: Column, targets: Column, integers: bool = False, double: bool = False) -> None:
        super().__init__(inputs, targets, integers=integers, double=double)
        self.chunk = (inputs.values.chunks or (1,))[0]
        self._dtypes = input_dtype(inputs.values.dtype, double), target_dtype(targets.values.dtype, double)
        self._blocks = Blocks(self.samples, self._read, self._pick)

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read a contiguous portion in the background; other samples are left to `gather`."""
        self._blocks.prefetch(indices)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        return self._blocks.gather(self._gatherer, indices)

    def _read(self, start: int, stop: int, memory: BlockArrays | None) -> BlockArrays:
        inputs, targets = (
            _read_column(column, start, stop, dtype, old)
            for column, dtype, old in zip(self._columns, self._dtypes, memory or (None, None), strict=True)
        )
        return inputs, targets

    def _pick(self, rows: NDArray[np.int64]) -> BlockArrays:
        arrays = []
        for column, dtype in zip(self._columns, self._dtypes, strict=True):
            with _reading(column, rows[0], rows[-1] + 1):
                values = column.values[rows]
                arrays.append(values if isinstance(values, Ragged) else values.astype(dtype))
                check_finite(Column(column.name, arrays[-1]), rows)
        inputs, targets = arrays
        return inputs, targets


def _read_column(column: Column, start: int, stop: int, dtype: np.dtype[Any], memory: Any) -> Any:
    """Return samples of a column: a `Ragged`, or an array whose first elements they are, `memory` if that suffices."""
    size = stop - start
    with _reading(column, start, stop):
        if isinstance(column.values, StoredBags):
            return column.values[start:stop]
        if memory is None or len(memory) < size:
            memory = np.empty((size, *column.values.shape[1:]), dtype)
        column.values.read_direct(memory, np.s_[start:stop], np.s_[0:size])
        check_finite(Column(column.name, memory[:size]), range(start, stop))
        return memory


@contextmanager
def _reading(column: Column, start: int, stop: int) -> Iterator[None]:
    """Raise MpidlError for samples that can't be read, or aren't finite, in the course of a run."""
    try:
        yield
    except OSError as error:
        raise MpidlError(f"{column.name}: samples {start} to {stop - 1} can't be read ({first_line(error)})") from None
    except UsageError as error:
        raise MpidlError(str(error)) from None
