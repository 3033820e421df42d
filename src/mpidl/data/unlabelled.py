"""Files of inputs without targets, for predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.columns import OFFSETS, Column, check_finite, check_inputs, input_dtype, with_offsets
from mpidl.data.dataset import ColumnSplit
from mpidl.data.hdf5_files import StoredDataset, open_hdf5
from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError, shown


class Unlabelled(ColumnSplit):
    """Inputs without targets, which are None in batches; a batch reads all samples between its first and its last.

    The column (samples, *input_shape) is converted as a `Gatherer` does; UsageError if it has no samples, or its dtype
    is unknown.
    """

    contiguous = True

    def __init__(self, inputs: Column, integers: bool = False, double: bool = False) -> None:
        check_inputs(inputs)
        super().__init__(inputs, integers=integers, double=double)
        if not self.samples:
            raise UsageError(f"{inputs.name}: no samples, expected at least one")
        self.input_shape = tuple(int(extent) for extent in inputs.values.shape[1:])
        self._inputs = inputs

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        first = int(indices.min())
        try:
            block = self._inputs.values[first : int(indices.max()) + 1]
        except OSError as error:
            raise UsageError(f"{self._inputs.name}: can't be read ({str(error).splitlines()[0]})") from error
        if not isinstance(block, Ragged):
            with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, and are found
                block = np.ascontiguousarray(block, dtype=input_dtype(block.dtype, self._double))
        check_finite(Column(self._inputs.name, block), range(first, first + len(block)))
        return self._gatherer.take(block, np.empty(len(block)), indices, first)._replace(targets=None)


def open_inputs(path: Path) -> Unlabelled:
    """Open a file of inputs: .npy, .npz (the array x, or the only one), or .h5 (the dataset x, or test/x).

    Beside x there may be x_offsets, those of bags.

    Raises
    ------
    UsageError
        The file is missing, damaged, of another type, or has no such array.
    """
    openers = {".npy": _open_npy, ".npz": _open_npz, ".h5": _open_hdf5, ".hdf5": _open_hdf5}
    if path.suffix not in openers:
        raise UsageError(f"{path}: expected a file {', '.join(openers)}, or 'train', 'validation' or 'test'")
    if not path.is_file():
        raise UsageError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        return Unlabelled(openers[path.suffix](path))
    except (OSError, ValueError, EOFError, KeyError) as error:
        reason = shown(str(error).splitlines()[0], 100)
        raise UsageError(f"{path}: not a readable {path.suffix} file ({reason})") from error


def _open_npy(path: Path) -> Column:
    return Column(str(path), np.load(path, mmap_mode="r", allow_pickle=False))


def _open_npz(path: Path) -> Column:
    arrays: Any = np.load(path, allow_pickle=False)
    names = getattr(arrays, "files", [])
    if "x" not in names and len(names) != 1:
        raise UsageError(f"{path}: {_listed('arrays', names)}, expected x, or only one")
    name = "x" if "x" in names else names[0]
    column, offsets = (Column(f"{path}: {each}", arrays.get(each)) for each in (name, f"{name}{OFFSETS}"))
    return column if offsets.values is None else with_offsets(column, offsets)


def _open_hdf5(path: Path) -> Column:
    import h5py

    file = open_hdf5(path, key="")
    name = next((name for name in ("x", "test/x") if isinstance(file.get(name), h5py.Dataset)), None)
    if name is None:
        raise UsageError(f"{path}: {_listed('datasets', list(file))}, expected x, or test/x")
    names = [each for each in (name, f"{name}{OFFSETS}") if each in file]
    column, *offsets = (StoredDataset.of(path, each, file[each]).column(file) for each in names)
    return with_offsets(column, *offsets) if offsets else column


def _listed(what: str, names: list[str]) -> str:
    return shown(f"{what} {', '.join(names)}" if names else f"no {what}")
