"""Checkpoints: one HDF5 file for each shard, and an index that shows them as one model.

A checkpoint is written in ``checkpoints/.ORDER-TOKEN`` and renamed to ``checkpoints/STEP`` when every file is on disk:
it appears whole or not at all. ``index.h5`` is written last. Its virtual datasets have each tensor in its own shape,
for any number of shards; its dataset ``layout`` has the order of the tensors in the shards; its group ``files`` has the
checksums of the other files. They are checked by `mpidl.storage.checkpoints.newest_good`, not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, takewhile
from math import prod
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from mpidl.errors import UsageError
from mpidl.parameters import Layout, Range
from mpidl.paths import TEXT_BYTES
from mpidl.schema import parse_toml
from mpidl.shards.scheduled_rule import AVERAGE
from mpidl.storage.files import (
    INDEX,
    LAYOUT,
    MATRICES,
    TABLES,
    datasets,
    decoded_layout,
    describe,
    readable,
    replica_file,
    shard_file,
)
from mpidl.storage.own_values import UNREADABLE, attributes, dataset, find, opened
from mpidl.storage.position import Position, check_number
from mpidl.storage.vectors import SavedVectors
from mpidl.tables.lookups import TableSpec
from mpidl.version import VERSION

#: Groups of the index and of a replica's files, which `mpidl.nn.model.ModelState` describes.
CONSTANTS, BUFFERS, STATE, DATA = "constants", "buffers", "state", "data"
_REPLICA = re.compile(r"replica-(\d+)(-\d+)?\.h5")


class Checkpoint:
    """A checkpoint on disk, read by any number of servers, in any layout of its tensors.

    Parameters
    ----------
    path : Path
        ``runs/NAME/checkpoints/STEP``.

    Attributes
    ----------
    sections : dict of str to dict
        The run's resolved configuration.
    data : dict of str to str
        Description of the run's data.
    shapes : dict of str to tuple of int
        Shapes of the parameter tensors, by their names.
    layout : Layout
        Layout of the vectors in the shards.
    states : tuple of str
        Names of the vectors beside the parameters.
    size : int
        Number of parameters.
    trained : str
        Name of the vector of trained values: the average of the parameters if the run kept one.
    aliases : dict of str to str
        Other names of tensors: the name in `shapes` for each.
    tables : list of TableSpec
        The model's tables, of which `mpidl.storage.table_files` reads the rows.

    Raises
    ------
    UsageError
        There is no readable checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with opened(path / INDEX) as file:
                given = attributes(file)
                layout = dataset(file, LAYOUT)[()]
                tables = "[]" if find(file, TABLES) is None else dataset(file, TABLES)[()]
            _check_version(path, str(given["version"]))
            files = {shard_file(number): describe(path / shard_file(number)) for number in range(int(given["shards"]))}
            self._sources = {name: tuple(vectors) for name, (_, vectors) in files.items()}
            self.shapes: dict[str, tuple[int, ...]] = {name: item.shape for name, item in self.datasets("parameters")}
            self.layout = decoded_layout(layout, self.shapes)
            self.tables = msgspec.json.decode(tables, type=list[TableSpec])
            self._vectors = SavedVectors([(path / name, held) for name, (held, _) in files.items()], self.layout)
            self.size = self._vectors.size
            if self.size != sum(map(prod, self.shapes.values())):
                raise ValueError(f"{self.size} parameters, the tensors have {sum(map(prod, self.shapes.values()))}")
            self.position = Position.of(given)
            if len(config := str(given["config"])) > TEXT_BYTES:
                raise ValueError(f"a configuration of {len(config)} characters, expected at most {TEXT_BYTES}")
            self.sections = msgspec.convert(parse_toml(config), dict[str, dict[str, Any]])
            self.data = msgspec.json.decode(given["data"], type=dict[str, str])
            self.aliases = msgspec.json.decode(given["aliases"], type=dict[str, str])
            if unknown := set(self.aliases.values()) - self.shapes.keys():
                raise ValueError(f"another name of the tensor {min(unknown)}, which it lacks")
        except UNREADABLE as error:
            raise UsageError(f"{path}: not a readable checkpoint: {error}") from error
        self.states = tuple(name.removeprefix("rule/") for name in self._sources[shard_file(0)] if name != "parameters")
        self.trained = f"rule/{AVERAGE}" if AVERAGE in self.states else "parameters"

    @property
    def shards(self) -> list[Path]:
        """The files of the shards."""
        return [path for path, _ in self._vectors.files]

    def datasets(self, group: str) -> Iterator[tuple[str, h5py.Dataset]]:
        """Yield the names and datasets of a group of the index, as `mpidl.storage.files.datasets`."""
        return datasets(self.path / INDEX, group, self._sources)

    def arrays(self, group: str) -> dict[str, np.ndarray]:
        """Return the arrays in a group of the index, by their names; none if there is no such group."""
        return {name: np.asarray(item[()]) for name, item in self.datasets(group)}

    def part(self, name: str, box: tuple[slice, ...]) -> np.ndarray:
        """Read a box of a dataset of the index; raise MpidlError if it can't be read."""
        with readable(self.path / INDEX), opened(self.path / INDEX) as file:
            return np.asarray(dataset(file, name, self._sources)[box])

    def read(self, vector: str, range: Range, layout: Layout | None = None) -> np.ndarray:
        """Read a range of a vector, "parameters" or "rule/NAME", from all its shards, as an array of shape
        (range.size,).

        The range is one of the vector in `layout`, by default that of the checkpoint. Raise MpidlError if a file can't
        be read, or the range isn't in the checkpoint.
        """
        return self._vectors.read(vector, range, layout)

    def rows(self, matrix: str, range: Range, layout: Layout) -> np.ndarray:
        """Read the rows of a range of a square matrix, as `SavedVectors.rows`."""
        return self._vectors.rows(matrix, range, layout)

    def shard_state(self, range: Range, layout: Layout | None = None) -> dict[str, np.ndarray]:
        """Return the state of the shards of a range: their vectors in it, and the counters of the first of them.

        The names are those of `mpidl.shards.state.ShardState.state`.
        """
        first = self._vectors.files[self._vectors.holders(range, layout)[0]]
        names, others = _contents(*first)
        return others | {name: self.read(name, range, layout) for name in names}

    def replica_vectors(
        self, number: int, range: Range | None = None, layout: Layout | None = None
    ) -> dict[str, np.ndarray]:
        """Return a range, by default all, of a replica's vectors, including the residual of its wire format.

        There are none of one that made no mark itself, though its file may have come later.
        """
        if any(replica.cut for replica in self.position.replicas[number : number + 1]):
            return {}
        paths = takewhile(Path.exists, (self.path / replica_file(number, part) for part in count()))
        with readable(self.path):
            files = [(path, _range(path, self.size)) for path in paths]
        if not files:
            return {}
        saved, (names, others) = SavedVectors(files, self.layout), _contents(*files[0])
        return others | {name: saved.read(name, range or Range(0, self.size), layout) for name in names}

    def vector(self, file: str, name: str, layout: Layout | None = None) -> np.ndarray | None:
        """Return a vector (size,) that one of the other files has, in a layout as for `read`; None without the file."""
        path, whole = self.path / file, Range(0, self.size)
        return SavedVectors([(path, whole)], self.layout).read(name, whole, layout) if path.exists() else None

    def kept_by(self, number: int, group: str) -> dict[str, np.ndarray]:
        """Return what a replica has kept for itself: the arrays in `BUFFERS`, `STATE` or `DATA` of its files, by name.

        They are those of the first replica that was saved if this one has no files.
        """
        with readable(self.path):
            found = {path: int(match[1]) for path in self.path.iterdir() if (match := _REPLICA.fullmatch(path.name))}
        first = number if number in found.values() else min(found.values(), default=None)
        files = [path for path, replica in found.items() if replica == first]
        return {name: np.asarray(item[()]) for path in files for name, item in datasets(path, group)}

    def clock(self, range: Range, layout: Layout | None = None) -> int:
        """Return the largest clock of the shards that had a part of a range."""
        clocks = []
        for number in self._vectors.holders(range, layout):
            with readable(path := self._vectors.files[number][0]), opened(path) as file:
                check_number("clock", clock := attributes(file)["clock"])
                clocks.append(int(clock))
        return max(clocks)


def _range(path: Path, size: int) -> Range:
    """Return the range of vectors of `size` elements in a replica's file: all, unless the replica is cut."""
    with readable(path), opened(path) as file:
        given = attributes(file)
        found = Range(int(given.get("start", 0)), int(given.get("stop", size)))
        if not 0 <= found.start <= found.stop <= size:
            raise OSError(f"of the parameters {found.start} to {found.stop}, of {size}")
        return found


def _contents(path: Path, held: Range) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the names of a file's vectors, of which it has the range `held`, and other arrays, but not a model's."""
    names: list[str] = []
    others: dict[str, np.ndarray] = {}
    for name, item in datasets(path):
        if name.startswith((f"{BUFFERS}/", f"{STATE}/", f"{DATA}/", f"{TABLES}/", f"{MATRICES}/")):
            continue
        if item.shape == (held.size,) and item.dtype.kind == "f":
            names.append(name)
        else:
            others[name] = np.asarray(item[()])
    return names, others


def _check_version(path: Path, version: str) -> None:
    """Raise UsageError if a checkpoint is of a later version of this package."""
    if _numbers(version) > _numbers(VERSION):
        raise UsageError(f"{path}: saved by mpidl {version}, this is mpidl {VERSION}; use that version or a later one")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
