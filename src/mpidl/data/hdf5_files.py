"""Datasets of HDF5 files, and of several files as one."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mpidl.data.columns import KEYS, OFFSETS, Column
from mpidl.data.hdf5_attributes import Decoded, Encoding, encoding_of
from mpidl.data.ragged import BagsOfFile, StoredBags
from mpidl.errors import UsageError
from mpidl.paths import by_flags, user_path

if TYPE_CHECKING:
    import h5py

#: Optional keys of files.
VALIDATION = ("validation/x", "validation/y")
#: Maximum number of files that a process keeps open.
OPEN_FILES = 32


def found_files(key: str, given: str | Sequence[str], kind: str) -> list[Path]:
    """Return the files of a key, those of a pattern sorted; UsageError if a pattern matches no file of this kind."""
    files: list[Path] = []
    for text in [given] if isinstance(given, str) else given:
        path = user_path(text)
        if path.exists() or not glob.has_magic(text):
            files.append(path)
            continue
        matching = sorted(glob.glob(str(path), recursive=True))
        if not matching:
            raise UsageError(f"{key}: {text}: matches no file, expected {kind}s")
        files += map(Path, matching)
    if not files:
        raise UsageError(f"{key}: no files, expected at least one {kind}")
    return files


def open_columns(files: Sequence[Path]) -> dict[str, Column]:
    """Return the datasets of HDF5 files, each joined from all files that have it.

    Raises
    ------
    UsageError
        A file is missing or isn't HDF5, a dataset is missing, or those of two files don't fit together.
    """
    opened = _opener()
    keys = (*KEYS, *(VALIDATION if any("validation" in opened(path) for path in files) else ()))
    parts: dict[str, list[StoredDataset]] = {key: [] for key in (*keys, *(f"{key}{OFFSETS}" for key in keys))}
    for path in files:
        file = opened(path)
        here = [key for key in keys if _has(file, key)]
        # One of several files may have only one of the splits.
        splits = {key.partition("/")[0] for key in (here if len(files) > 1 and here else keys)}
        for key in keys:
            if key in here:
                offsets = f"{key}{OFFSETS}"
                for name in (key, offsets) if _has(file, offsets) else (key,):
                    parts[name].append(StoredDataset.of(path, name, file[name]))
            elif key.partition("/")[0] in splits:
                raise UsageError(f"{path}: no dataset {key}, expected {', '.join(keys)}")
    for key in keys:
        if not parts[key]:
            raise UsageError(f"data.path: none of {len(files)} files has a dataset {key}, expected {', '.join(keys)}")
    return {key: _column(key, parts[key], parts[f"{key}{OFFSETS}"], opened) for key in keys}


class StoredDataset(NamedTuple):
    """A dataset of one file: the shape and dtype of its values, and their encoding, if any."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    encoding: Encoding | None

    @classmethod
    def of(cls, path: Path, key: str, dataset: h5py.Dataset) -> StoredDataset:
        """Return the description of a dataset; UsageError if it holds no samples, or lacks a source."""
        encoding = encoding_of(f"{path}: {key}", dataset)
        if dataset.is_virtual:
            _check_sources(path, key, dataset, encoding)
        return cls(path, key, dataset.shape, dataset.dtype if encoding is None else encoding.dtype, encoding)

    def column(self, file: h5py.File) -> Column:
        """Return the column of its values in the open file."""
        name, dataset = f"{self.path}: {self.key}", file[self.key]
        return Column(name, dataset if self.encoding is None else Decoded(name, dataset, self.encoding))


#: Datasets of several files, and what opens a file.
Stored = Sequence[StoredDataset]
Opener = Callable[[Path], "h5py.File"]


def _has(file: h5py.File, key: str) -> bool:
    import h5py

    return isinstance(file.get(key), h5py.Dataset)


def _column(key: str, parts: Stored, offsets: Stored, opened: Opener) -> Column:
    first, *others = parts
    if offsets:
        return Column(_name(key, parts), StoredBags(_bags(parts, offsets, opened)))
    if not others:
        column = first.column(file := opened(first.path))
        _KEPT[column.values] = file
        return column
    for part in others:
        for found, expected in ((part.shape[1:], first.shape[1:]), (part.dtype, first.dtype)):
            if found != expected:
                raise UsageError(f"{part.path}: {key}: {found}, expected {expected} as in {first.path}")
    return Column(_name(key, parts), ConcatenatedDataset(parts, opened))


def _name(key: str, parts: Stored) -> str:
    path = parts[0].path
    return f"{path}: {key}" if len(parts) == 1 else f"{path}, ... ({len(parts)} files): {key}"


def _bags(parts: Stored, offsets: Stored, opened: Opener) -> list[BagsOfFile]:
    """Return the bags of files, all of which have offsets."""
    with_offsets = {part.path: part for part in offsets}
    made = []
    for part in parts:
        own = with_offsets.get(part.path)
        if own is None:
            raise UsageError(f"{part.path}: no dataset {offsets[0].key}, expected one as in {offsets[0].path}")
        bags = BagsOfFile(f"{part.path}: {part.key}", *(ConcatenatedDataset([each], opened) for each in (part, own)))
        try:
            made.append(bags.check(f"{own.path}: {own.key}"))
        except OSError as error:
            raise UsageError(f"data.path: {own.path}: {own.key} can't be read ({first_line(error)})") from None
    return made


class ConcatenatedDataset:
    """Datasets of several files, one after another, with the interface of one h5py dataset.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    chunks : tuple of int or None
        The chunks of the first file.
    """

    def __init__(self, parts: Stored, opened: Opener) -> None:
        self._parts, self._opened = parts, opened
        self._starts = np.array([0, *accumulate(part.shape[0] for part in parts)])
        self.chunks: tuple[int, ...] | None = self._part(0).chunks
        self.shape, self.dtype = (int(self._starts[-1]), *parts[0].shape[1:]), parts[0].dtype

    def read_direct(self, memory: NDArray[Any], source: slice, target: slice) -> None:
        """Read the samples of a slice into those of another slice of `memory`."""
        at, number = source.start, int(np.searchsorted(self._starts, source.start, side="right")) - 1
        while at < source.stop:
            begin, end = self._starts[number : number + 2].tolist()
            size, there = min(source.stop, end) - at, target.start + at - source.start
            if size:
                self._part(number).read_direct(
                    memory, np.s_[at - begin : at - begin + size], np.s_[there : there + size]
                )
            at, number = at + size, number + 1

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return the samples of a slice, or of sorted indices."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            values: NDArray[Any] = np.empty((stop - start, *self.shape[1:]), self.dtype)
            self.read_direct(values, np.s_[start:stop], np.s_[0 : stop - start])
            return values
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        parts = [self._part(number)[rows[numbers == number] - self._starts[number]] for number in np.unique(numbers)]
        return np.concatenate(parts)

    def _part(self, number: int) -> Any:
        part = self._parts[number]
        return part.column(self._opened(part.path)).values


def open_hdf5(path: Path, key: str = "data.path: ") -> h5py.File:
    """Open the file of a key, which stays open while any of its datasets is in use, or until `closing` ends."""
    import h5py

    if not path.is_file():
        found = "not a file" if path.exists() else "no such file"
        raise UsageError(f"{key}{path}: {found}, expected an HDF5 file")
    try:
        # A file that is only read needs no lock, which would load the file system with requests of many ranks.
        file = by_flags(lambda **flags: h5py.File(path, "r", **flags))
    except OSError as error:
        raise UsageError(f"{key}{path}: {unopened(error)}") from None
    _FILES[next(_NUMBERS)] = file
    return file


def _opener() -> Opener:
    """Return a function that opens files, and keeps the last `OPEN_FILES` of them open until they are closed."""
    kept = lru_cache(OPEN_FILES)(open_hdf5)

    def opened(path: Path) -> h5py.File:
        if not (file := kept(path)):
            kept.cache_clear()
            file = kept(path)
        return file

    return opened


#: The open files, numbered as they were opened; and that of each dataset that is read without its file.
_FILES: WeakValueDictionary[int, h5py.File] = WeakValueDictionary()
_KEPT: WeakKeyDictionary[Any, h5py.File] = WeakKeyDictionary()
_NUMBERS = count()


@contextmanager
def closing() -> Iterator[None]:
    """Close the files that are opened in this context, which a script may then write, or open with other flags."""
    before = next(_NUMBERS)
    try:
        yield
    finally:
        for file in [file for number, file in list(_FILES.items()) if number > before]:
            file.close()


def _check_sources(path: Path, key: str, dataset: h5py.Dataset, encoding: Encoding | None) -> None:
    """Raise UsageError if a virtual dataset lacks a source, which HDF5 reads as fill values, or the source's scale."""
    import h5py

    plan = dataset.file.id.get_access_plist()  # HDF5 opens sources by the flags of the file
    what = f"{path}: {key} is a virtual dataset, and"
    if without := dataset.size - _mapped(dataset):
        raise UsageError(f"{what} {without} of its {dataset.size} values have no source")
    for name, inner in sorted({(source.file_name, source.dset_name) for source in dataset.virtual_sources()}):
        found = path if name == "." else next(filter(Path.is_file, _places(path, name)), None)
        if found is None:
            raise UsageError(f"{what} its source {name} is missing")
        try:
            with h5py.File(h5py.h5f.open(os.fsencode(found), h5py.h5f.ACC_RDONLY, plan)) as file:
                if not isinstance(file.get(inner), h5py.Dataset):
                    raise UsageError(f"{what} its source {found} has no dataset {inner}")
                source = StoredDataset.of(found, inner, file[inner]).encoding
        except OSError as error:
            raise UsageError(f"{what} its source {found} can't be used: {unopened(error)}") from None
        if source is not None and source.scaling != ((1, 0) if encoding is None else encoding.scaling):
            raise UsageError(f"{what} its source {found} has a scale_factor or add_offset that it lacks")


def _mapped(dataset: h5py.Dataset) -> int:
    """Return the number of a virtual dataset's values that have a source; all where its size follows the sources."""
    from h5py import h5s

    mapped = None
    for source in dataset.virtual_sources():
        if source.vspace.get_select_type() == h5s.SEL_ALL:
            return int(dataset.size)
        if source.vspace.is_regular_hyperslab():
            _, _, counts, blocks = source.vspace.get_regular_hyperslab()
            if h5s.UNLIMITED in (*counts, *blocks):
                return int(dataset.size)
        mapped = source.vspace if mapped is None else mapped.combine_select(source.vspace, h5s.SELECT_OR)
    return 0 if mapped is None else int(mapped.get_select_npoints())


def _places(path: Path, name: str) -> Iterator[Path]:
    """Yield the paths at which HDF5 looks for a file named by the file at `path`."""
    yield Path(name)
    beside = Path(name).name if Path(name).is_absolute() else name
    prefix = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", str(path.parent))
    for folder in (prefix, path.parent, path.resolve().parent):
        yield Path(folder) / beside


def first_line(error: OSError) -> str:
    """Return the first line of HDF5's error message, which has many."""
    return str(error).splitlines()[0]


def unopened(error: OSError) -> str:
    """Return why a file can't be opened: HDF5 says so in the middle of its message."""
    text = first_line(error)
    reason = re.search(r"error message = '(.*?)'", text) or re.search(r"\((.*)\)", text)
    what = "not a valid HDF5 file" if "signature" in text or "truncated" in text else "can't be opened"
    return f"{what} ({reason[1] if reason else text})"
