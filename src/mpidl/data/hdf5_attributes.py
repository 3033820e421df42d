"""HDF5 datasets whose attributes say, by conventions of netCDF and MATLAB, that stored values stand for others.

Source: CF Conventions 1.12, sections 2.5.1 and 8.1; NetCDF Users Guide, appendix A; MAT-files of version 7.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mpidl.errors import UsageError, quoted

if TYPE_CHECKING:
    import h5py

#: Number of elements that are unpacked at a time, in cache.
PIECE = 1 << 15


class Encoding(Struct, frozen=True):
    """How values are stored: as (value - offset) / scale.

    Attributes
    ----------
    stored, dtype : numpy.dtype
        Dtypes of the stored values, and of the values that they represent.
    missing : tuple of (str, scalar)
        Stored values that mark missing ones, each with the name of its attribute.
    """

    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    missing: tuple[tuple[str, Any], ...] = ()
    scale: float = 1.0
    offset: float = 0.0

    @property
    def scaling(self) -> tuple[float, float]:
        """The scale and the offset; (1, 0) for values that aren't scaled."""
        return self.scale, self.offset


def encoding_of(name: str, dataset: h5py.Dataset) -> Encoding | None:
    """Return the encoding of a dataset, or None if its values are stored as they are.

    Raises
    ------
    UsageError
        The dataset is no array of numbers, or an attribute isn't a number; the message begins with `name`.
    """
    if not dataset.shape:
        found = "no values (an empty dataspace)" if dataset.shape is None else "a single value"
        raise UsageError(f"{name}: {found}, expected an array (samples, ...)")
    keys = ("MATLAB_class", "MATLAB_empty", "_Unsigned", "scale_factor", "add_offset", "_FillValue", "missing_value")
    given = {key: np.asarray(dataset.attrs[key]) for key in keys if key in dataset.attrs}
    kind, stored = _text(given.get("MATLAB_class")), dataset.dtype
    if "MATLAB_empty" in given and given["MATLAB_empty"].any():
        raise UsageError(f"{name}: an empty array of MATLAB, expected at least one sample")
    if kind == "char":
        raise UsageError(f"{name}: text of MATLAB, expected numbers")
    if kind == "logical":
        return Encoding(stored, np.dtype(np.int8))
    if stored.kind not in "iuf":
        return None
    if stored.kind in "iu" and (unsigned := _text(given.get("_Unsigned"))) in ("true", "false"):
        stored = np.dtype(f"{stored.byteorder}{'u' if unsigned == 'true' else 'i'}{stored.itemsize}")
    scale, offset = (_number(name, key, given, default) for key, default in (("scale_factor", 1), ("add_offset", 0)))
    packed = (scale, offset) != (1, 0)
    encoding = Encoding(
        stored, np.result_type(np.float32, scale.dtype, offset.dtype) if packed else stored,
        (*_missing(name, given, stored), *_never_written(given, dataset)), float(scale), float(offset),
    )  # fmt: skip
    return encoding if packed or encoding.missing or stored != dataset.dtype else None


def _text(value: NDArray[Any] | None) -> str:
    each = value.item() if value is not None and value.size == 1 else ""
    return each.decode(errors="replace") if isinstance(each, bytes) else str(each)


def _numbers(name: str, key: str, value: NDArray[Any]) -> NDArray[Any]:
    if value.dtype.kind not in "iuf":
        raise UsageError(f"{name}: attribute {key} is {quoted(_text(value))}, expected a number")
    return value.ravel()


def _number(name: str, key: str, given: Mapping[str, NDArray[Any]], default: float) -> Any:
    values = _numbers(name, key, given.get(key, np.array([default], np.float32)))
    if len(values) != 1 or not np.isfinite(values[0]):
        raise UsageError(f"{name}: attribute {key} is {quoted(values.tolist())}, expected one finite number")
    return values[0]


def _missing(name: str, given: Mapping[str, NDArray[Any]], stored: np.dtype[Any]) -> list[tuple[str, Any]]:
    """Return the marks of missing values, except NaN, which is refused anyway."""
    found = []
    for key in ("_FillValue", "missing_value"):
        values = _numbers(name, key, given.get(key, np.array([], stored)))
        with np.errstate(invalid="ignore"):
            cast = values.astype(stored)
        # A mark of the stored width may have the other sign; any other that integers can't hold marks nothing.
        bits = values.dtype.kind in "iu" and values.itemsize == stored.itemsize
        marks = ~np.isnan(cast) if stored.kind == "f" else (cast == values) | bits
        found += [(key, each) for each in cast[marks]]
    return found


def _never_written(given: Mapping[str, NDArray[Any]], dataset: h5py.Dataset) -> list[tuple[str, Any]]:
    """Return what netCDF reads where nothing has been written; bytes have no such value."""
    import h5py

    defined = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if not defined or "_FillValue" in given or dataset.dtype.itemsize == 1 or "_NCProperties" not in dataset.file.attrs:
        return []
    return [("netCDF's default _FillValue", dataset.fillvalue)]


class Decoded:
    """An encoded dataset with the interface of one h5py dataset of the values that its own stand for.

    Reading raises UsageError for a missing value, with the dataset's name and the sample.
    """

    def __init__(self, name: str, dataset: h5py.Dataset, encoding: Encoding) -> None:
        self._name, self._dataset, self._encoding = name, dataset, encoding
        self.shape, self.dtype, self.chunks = dataset.shape, encoding.dtype, dataset.chunks

    def read_direct(self, memory: NDArray[Any], source: slice, target: slice) -> None:
        """Read the samples of a slice into those of another slice of `memory`."""
        self._decode(source, memory[target])

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return the samples of a slice, or of sorted indices."""
        return self._decode(rows)

    def _decode(self, rows: slice | NDArray[np.int64], out: NDArray[Any] | None = None) -> NDArray[Any]:
        encoding = self._encoding
        values = self._dataset[rows].view(encoding.stored)
        for key, mark in encoding.missing:
            if len(found := np.flatnonzero((values == mark).reshape(len(values), -1).any(axis=1))):
                sample = range(self.shape[0])[rows][found[0]] if isinstance(rows, slice) else rows[found[0]]
                raise UsageError(
                    f"{self._name}: missing value {mark!s} ({key}) in sample {sample}, expected finite numbers"
                )
        out = np.empty(values.shape, encoding.dtype) if out is None else out
        if encoding.scaling == (1, 0):
            np.copyto(out, values, casting="unsafe")
            return out
        size = max(1, PIECE * len(values) // max(1, values.size))
        for start in range(0, len(values), size):
            # In float64: an offset may cancel most of a value.
            piece = values[start : start + size] * np.float64(encoding.scale)
            piece += encoding.offset
            out[start : start + size] = piece
        return out
