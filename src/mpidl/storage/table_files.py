"""The tables of a checkpoint: rows by id in the files of all shards, which are read block by block.

Each shard's file has ``tables/NAME/ids``, ``rows``, ``state`` and ``uses``, with a row for each id, beside other arrays
with which the server's part of the table continues. A file may have only rows that were used after an earlier
checkpoint, which has the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import TABLES, Base, readable, tensor_name
from mpidl.storage.own_values import dataset, opened, walk
from mpidl.tables.distinct import owner
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import ROWS as COUNT
from mpidl.tables.table import left

#: Arrays of a table with a row for each id.
IDS, ROWS, STATE, USES = "ids", "rows", "state", "uses"
BY_ROW = (IDS, ROWS, STATE, USES)
#: Numbers of the whole part, the first of which is that of the last update.
COUNTS = "counts"
#: Counts of the ids that have no row yet, where there is an admission after touches.
TOUCHES = "touches"
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
#: Rows that are read at a time.
BLOCK = 65_536


class TableFile(NamedTuple):
    """A file with rows of a table: the paths of its arrays there, and the number of its rows."""

    file: Path
    paths: Mapping[str, str]
    rows: int

    def read(self, array: str) -> np.ndarray:
        """Return an array of the file; raise MpidlError if it can't be read."""
        with readable(self.file), opened(self.file) as file:
            return np.asarray(dataset(file, self.paths[array])[()])

    def mapped(self, array: str) -> np.ndarray:
        """Return an array of the file that stays on disk until it is looked at; MpidlError if it can't be read."""
        with readable(self.file), opened(self.file) as file:
            found = dataset(file, self.paths[array])
            if not found.size:
                return np.empty(found.shape, found.dtype)
            return np.memmap(self.file, found.dtype, "r", found.id.get_offset(), found.shape).view(np.ndarray)


class RowPart:
    """A shard's part of a table: its rows, and other arrays.

    The rows of the shard's file take the place of those in the file of an earlier checkpoint, if there is one: `files`
    has the earlier one first. Ids are in memory as soon as they are asked for.

    Attributes
    ----------
    file : Path
        The shard's file.
    """

    def __init__(self, name: str, files: Sequence[TableFile]) -> None:
        self._name, self._files, self.file = name, files, files[-1].file

    @property
    def ids(self) -> np.ndarray:
        """The ids of the rows, int64 (n,); MpidlError if a file can't be read, or lacks rows."""
        return self._found[0]

    @cached_property
    def _found(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The ids, and their places in each file."""
        ids = [each.read(IDS) for each in self._files]
        with readable(self.file):
            rows = int(self.read(COUNTS)[COUNT])
            places = left(ids, rows) if len(ids) > 1 else [np.arange(ids[0].size)]
        found = np.concatenate([each[own] for each, own in zip(ids, places, strict=True)])
        if found.size != rows:
            raise MpidlError(f"{self.file}: {found.size} rows of table {quoted(self._name)}, expected {rows}")
        return found, places

    def __contains__(self, array: str) -> bool:
        return array in self._files[-1].paths

    def read(self, array: str) -> np.ndarray:
        """Return an array beside the rows; raise MpidlError if it can't be read."""
        return self._files[-1].read(array)

    def mapped(self, array: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the arrays of a name in `BY_ROW` that stay on disk, and the places of the rows in each, in order."""
        return [(each.mapped(array), places) for each, places in zip(self._files, self._found[1], strict=True)]


def take(arrays: Sequence[tuple[np.ndarray, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    """Return rows, given by their number, int64 (n,), of arrays that `RowPart.mapped` has returned."""
    found, start = np.empty((rows.size, *arrays[0][0].shape[1:]), arrays[0][0].dtype), 0
    for array, places in arrays:
        here = np.flatnonzero((rows >= start) & (rows < start + places.size))
        found[here] = array[places[rows[here] - start]]
        start += places.size
    return found


class SavedTable:
    """A table in a checkpoint.

    Attributes
    ----------
    spec : TableSpec
    states : int
        Number of the rule's states of each row.
    dtype : numpy.dtype
        Dtype of the rows.
    parts : sequence of RowPart
        Those of all shards.
    """

    def __init__(self, spec: TableSpec, files: Sequence[Sequence[tuple[Path, Mapping[str, str]]]]) -> None:
        self.spec, self.parts, found = spec, [], set()
        for shard in files:
            own = []
            for path, paths in shard:
                with readable(path), opened(path) as file:
                    states, dtype, rows = _checked(spec, {name: dataset(file, paths[name]) for name in BY_ROW})
                found.add((states, dtype))
                own.append(TableFile(path, paths, rows))
            self.parts.append(RowPart(spec.name, own))
        if len(found) != 1:
            raise MpidlError(f"{files[0][0][0].parent}: the files differ in the states of table {quoted(spec.name)}")
        ((self.states, self.dtype),) = found

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(int(part.read(COUNTS)[COUNT]) for part in self.parts)

    def read(self, array: str) -> np.ndarray:
        """Return one of the arrays `BY_ROW`, such as "ids" (n,) or "rows" (n, dimension), of all rows.

        Raise MpidlError if a file can't be read, or there are two rows of an id.
        """
        if array == IDS:
            self.check()
            return np.concatenate([part.ids for part in self.parts])
        return np.concatenate([values[places] for part in self.parts for values, places in part.mapped(array)])

    def of(self, server: int, servers: int) -> list[RowPart]:
        """Return the parts with rows of a server: its own part, if there were as many servers."""
        return [self.parts[server]] if len(self.parts) == servers else self.parts

    def blocks(self, server: int, servers: int, size: int = BLOCK) -> Iterator[dict[str, np.ndarray]]:
        """Yield the rows of a server as blocks of the arrays `BY_ROW`, in the order of the files.

        Raise MpidlError if a file can't be read, has rows of other servers than the one that saved it, or if there are
        two rows of an id.
        """
        own = []
        for part in self.of(server, servers):
            others = {name: part.mapped(name) for name in BY_ROW[1:]}
            places = np.flatnonzero(owner(part.ids, servers) == server)
            if len(self.parts) == servers and places.size != part.ids.size:
                raise MpidlError(f"{part.file}: has rows of table {quoted(self.spec.name)} of other servers")
            own.append(part.ids[places])
            for start in range(0, max(1, places.size), size):
                block = places[start : start + size]
                yield {IDS: part.ids[block], **{name: take(arrays, block) for name, arrays in others.items()}}
        self._check_distinct(own)

    def check(self) -> None:
        """Raise MpidlError if there are two rows of an id: a reader could take either."""
        self._check_distinct([part.ids for part in self.parts])

    def _check_distinct(self, ids: Sequence[np.ndarray]) -> None:
        found = np.sort(np.concatenate(ids))
        if (found[1:] == found[:-1]).any():
            raise MpidlError(f"{self.parts[0].file.parent}: table {quoted(self.spec.name)} has two rows of an id")


def saved_tables(checkpoint: Checkpoint) -> dict[str, SavedTable]:
    """Return the tables of a checkpoint by their names; raise MpidlError if a file can't be read, or lacks one."""
    if not checkpoint.tables:
        return {}
    places = [[(each, _places(each)) for each in _with_base(path)] for path in checkpoint.shards]
    found = {}
    for spec in checkpoint.tables:
        for path, tables in chain(*places):
            if missing := [name for name in (*BY_ROW, COUNTS) if name not in tables.get(spec.name, ())]:
                raise MpidlError(f"{path}: has no {missing[0]} of table {quoted(spec.name)}")
        files = [[(path, tables[spec.name]) for path, tables in shard] for shard in places]
        found[spec.name] = SavedTable(spec, files)
    return found


def _with_base(path: Path) -> list[Path]:
    """Return a shard's file, after that of the earlier checkpoint with rows that it lacks, if there is one."""
    with readable(path):
        base = Base.of(path)
    return [path] if base is None else [path.parent.parent / str(base.step) / path.name, path]


def check_tables(checkpoint: Checkpoint, tables: Sequence[TableSpec]) -> None:
    """Raise UsageError unless a model's tables are those of a checkpoint."""
    saved, present = ({spec.name: spec for spec in specs} for specs in (checkpoint.tables, tables))
    for name in [*present, *saved]:
        found, expected = (_described(each.get(name)) for each in (saved, present))
        if found != expected:
            raise UsageError(f"{checkpoint.path}: table {quoted(name)}: found {found}, the model has {expected}")


def _described(spec: TableSpec | None) -> str:
    if spec is None:
        return "none"
    return f"{'any number of' if spec.rows is None else spec.rows} rows of dimension {spec.dimension}"


def _places(path: Path) -> dict[str, dict[str, str]]:
    """Return the paths of the arrays of each table in a file, by their names."""
    found: dict[str, dict[str, str]] = {}
    with readable(path), opened(path) as file:
        for place, _ in walk(file, TABLES, path.stat().st_size):
            table, _, array = tensor_name(place).rpartition("/")
            found.setdefault(table, {})[array] = f"{TABLES}/{place}"
    return found


def _checked(spec: TableSpec, arrays: Mapping[str, h5py.Dataset]) -> tuple[int, np.dtype, int]:
    """Return the number of states, the rows' dtype, and the number of rows; raise OSError if they aren't a table's."""
    rows, dtype, width = arrays[IDS].size, arrays[ROWS].dtype, spec.dimension
    states = arrays[STATE].shape[-1] // width
    if dtype not in FLOATS:
        raise OSError(f"{ROWS} of table {quoted(spec.name)}: found {dtype}, expected float32 or float64")
    expected = {
        IDS: (np.dtype(np.int64), (rows,)),
        ROWS: (dtype, (rows, width)),
        STATE: (dtype, (rows, states * width)),
        USES: (np.dtype(np.int64), (rows, 2)),
    }
    for name, (kind, shape) in expected.items():
        if (found := arrays[name]).dtype != kind or found.shape != shape:
            given = f"{found.dtype} of shape {found.shape}"
            raise OSError(f"{name} of table {quoted(spec.name)}: found {given}, expected {kind} of shape {shape}")
    return states, dtype, rows
