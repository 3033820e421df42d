"""Arrays: in memory, and in the files that NumPy writes."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from operator import getitem
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpidl.data.batch import Batch
from mpidl.data.columns import (
    KEYS,
    OFFSETS,
    Column,
    as_array,
    check,
    check_finite,
    check_read,
    splits_of,
    target_dtype,
    with_offsets,
)
from mpidl.data.dataset import PYTHON, ArraySplit, ColumnSplit, Dataset
from mpidl.data.ragged import StoredBags
from mpidl.errors import UsageError, quoted
from mpidl.paths import user_path
from mpidl.schema import Checked, Count

#: Bytes in which NumPy's headers of .npy files end.
HEADER_BYTES = 1 << 14


@dataclass(frozen=True)
class Arrays:
    """Arrays in memory.

    Parameters
    ----------
    train, test : (inputs, targets)
        Arrays as `ArraySplit` takes them.
    classes : int, optional
        Number of classes; one more than the largest label of `train` by default.
    validation : (inputs, targets), optional
        The validation split.

    Examples
    --------
    >>> inputs, labels = np.zeros((9, 4)), np.arange(9) % 3
    >>> Arrays((inputs, labels), (inputs[:2], labels[:2])).open().classes
    3
    """

    name: ClassVar[str] = PYTHON
    train: tuple[ArrayLike, ArrayLike]
    test: tuple[ArrayLike, ArrayLike]
    classes: int | None = None
    validation: tuple[ArrayLike, ArrayLike] | None = None

    def open(self) -> Dataset:
        """Return the dataset.

        Raises
        ------
        UsageError
            The arrays don't fit together, or a number is not finite.
        """
        columns = [_columns("train", self.train), _columns("test", self.test)]
        if self.validation is not None:
            columns.append(_columns("validation", self.validation))
        input_shape, classes = check(columns, self.classes)
        splits = [ArraySplit(inputs.values, targets.values) for inputs, targets in columns]
        return Dataset(self.name, input_shape, classes, *splits)


def _columns(part: str, arrays: Any) -> tuple[Column, Column]:
    if not isinstance(arrays, tuple | list) or len(arrays) != 2:
        raise UsageError(f"{part}: expected (inputs, targets), found {quoted(arrays)}")
    inputs, targets = (f"{part} inputs", f"{part} targets")
    return Column(inputs, as_array(inputs, arrays[0])), Column(targets, as_array(targets, arrays[1]))


@dataclass(frozen=True)
class ArrayFiles(Checked):
    """A directory with train/x.npy, train/y.npy, test/x.npy and test/y.npy, or an .npz file with these four arrays.

    Shapes and types are those of `Hdf5`, and so are bags of ids, with train/x_offsets.npy and test/x_offsets.npy, or
    arrays of these names. x in .npy files is mapped: it may be larger than memory, and a node's ranks share it; ids of
    bags are if they are int64. An .npz file is read into memory; unzipped, it is such a directory.

    Attributes
    ----------
    path : str
        Path of the directory, or of the .npz file, whose keys are "train/x" and so on.
    classes : int or None
        Class ids are in [0, classes); by default one more than the largest in train/y.
    """

    name: ClassVar[str] = "arrays"
    path: str
    classes: Count | None = None

    def open(self) -> Dataset:
        path = user_path(self.path)
        mapped = path.is_dir()
        columns = _mapped(path) if mapped else _unzipped(path)
        given = splits_of(columns)
        input_shape, classes = check(given, self.classes)
        splits = (
            MappedSplit(x, y) if mapped else ArraySplit(partial(getitem, x.values, slice(None)), y.values)
            for x, y in given
        )
        return Dataset(self.name, input_shape, classes, *splits)


def _mapped(path: Path) -> dict[str, Column]:
    """Return the arrays of a directory of .npy files, mapped into memory."""
    columns = {}
    for key in KEYS:
        file, offsets = path / f"{key}.npy", path / f"{key}{OFFSETS}.npy"
        if not file.is_file():
            expected = ", ".join(f"{each}.npy" for each in KEYS)
            raise UsageError(f"data.path: {path} has no {key}.npy, expected {expected}")
        columns[key] = _npy(file)
        if offsets.is_file():
            columns[key] = with_offsets(columns[key], _npy(offsets))
    return columns


def _npy(file: Path) -> Column:
    try:
        return Column(str(file), np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"data.path: {file}: not a valid .npy file ({error})") from None


def _unzipped(path: Path) -> dict[str, Column]:
    """Return the arrays of an .npz file; the inputs are yet to be read."""
    if not path.exists():
        raise UsageError(f"data.path: {path}: no such file, expected an .npz file or a directory of .npy files")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for key in KEYS:
                if f"{key}.npy" not in names:
                    raise UsageError(f"{path}: no array {key}, expected {', '.join(KEYS)}")
        found = [key for key in (*KEYS, *(f"{key}{OFFSETS}" for key in KEYS)) if f"{key}.npy" in names]
        members = {key: Member(path, key) for key in found}
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"data.path: {path}: not a valid .npz file ({error})") from None
    read = {key: member if key.endswith("x") else member.read() for key, member in members.items()}
    columns = {key: Column(f"{path}: {key}", values) for key, values in read.items()}
    for key in KEYS:
        if f"{key}{OFFSETS}" in columns:
            columns[key] = with_offsets(columns[key], columns[f"{key}{OFFSETS}"])
    return columns


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the dtype of an array in a .npy file; ValueError if it isn't one."""
    # NumPy reads a header of any length before it checks that.
    beginning = BytesIO(stream.read(HEADER_BYTES))
    first = np.lib.format.read_magic(beginning) == (1, 0)
    shape, _, dtype = (np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0)(beginning)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, dtype


class Member:
    """An array of an .npz file: its shape and dtype, and its values on request; UsageError if it isn't an array."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        try:
            with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
                self.shape, self.dtype = npy_header(stream)
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(f"{path}: {key} is not a valid array ({error})") from None

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Return a part of the array, all of which is read."""
        return self.read()[part]

    def read(self) -> NDArray[Any]:
        """Return the array; UsageError if it is damaged."""
        try:
            with np.load(self._path, allow_pickle=False) as arrays:
                array: NDArray[Any] = arrays[self._key]
                return array
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(f"{self._path}: {self._key} can't be read ({error})") from None


class MappedSplit(ColumnSplit):
    """Samples whose inputs are in a mapped file, and are converted batch by batch.

    Targets are read into memory; UsageError if one is not finite.
    """

    by_parts = True

    def __init__(self, inputs: Column, targets: Column, integers: bool = False, double: bool = False) -> None:
        super().__init__(inputs, targets, integers=integers, double=double)
        self._inputs = inputs
        self._rows = inputs.values[:] if isinstance(inputs.values, StoredBags) else np.asarray(inputs.values)
        self._targets = np.ascontiguousarray(targets.values, dtype=target_dtype(targets.values.dtype, double))
        check_finite(Column(targets.name, self._targets))

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        batch = self._gatherer.take(self._rows, self._targets, indices)
        check_read(Column(self._inputs.name, batch.inputs), indices)
        return batch
