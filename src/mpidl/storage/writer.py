"""Writing the files of a checkpoint: those of shards beside other work, and the index that shows them as one model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import msgspec
import numpy as np
from msgspec import Struct

from mpidl.errors import NOT_FINITE, DivergenceError, MpidlError, quoted
from mpidl.launch.fault_points import fault_point
from mpidl.launch.shared_memory import check_free
from mpidl.parameters import Box, Layout, Range, Slice
from mpidl.paths import open_directory, regular
from mpidl.storage.files import (
    BASES,
    INDEX,
    INTERIM,
    LAYOUT,
    RUN,
    SHARD,
    TABLES,
    Base,
    cannot_write,
    describe,
    encoded_layout,
    places,
    shard_file,
    sync,
)
from mpidl.storage.integrity import create, recorded, seal
from mpidl.storage.position import Position
from mpidl.storage.removal import remove, set_aside
from mpidl.tables.lookups import TableSpec

#: Bytes per write, and size of the largest array that HDF5 itself writes.
SLICE = 1 << 20
#: Bytes that an interim checkpoint leaves free where it lies: windows there may not have written all of theirs yet.
RESERVE = 1 << 28
#: The threads that write. They stay from the first checkpoint on: Python hangs if there is no memory for a new one.
_threads = ThreadPoolExecutor(thread_name_prefix="checkpoint")


class BackgroundTask:
    """Runs one action at a time in a thread; its exception is raised by `ended`."""

    def __init__(self) -> None:
        self._running: Future[object] | None = None

    @property
    def active(self) -> bool:
        """Whether an action has begun whose end `ended` hasn't reported."""
        return self._running is not None

    def begin(self, action: Callable[[], object]) -> None:
        """Begin an action; the end of one still running is not reported any more."""
        self._running = _threads.submit(action)

    def ended(self) -> bool:
        """Return True once the action has ended, and only once."""
        if self._running is None or not self._running.done():
            return False
        running, self._running = self._running, None
        running.result()
        return True


def write_file(path: Path, attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write and seal an HDF5 file, and wait until it is on disk.

    Its directory is created if it doesn't exist, but none above it. The arrays, by the names of their datasets, must
    not change meanwhile. Raise MpidlError if the file can't be written, for example because the disk is full. That of
    an interim checkpoint, which the run can do without, is then only missing.
    """
    if path.parent.suffix != INTERIM:
        _write_file(path, attributes, arrays)
        return
    try:
        check_room(path.parent.parent, sum(array.nbytes for array in arrays.values()))
        _write_file(path, attributes, arrays)
    except MpidlError:
        path.unlink(missing_ok=True)


def check_room(directory: Path, needed: int) -> None:
    """Raise MpidlError unless a directory has room for files of `needed` bytes of interim checkpoints."""
    remedy = "make room there, or use more nodes"
    check_free(directory, needed + RESERVE, "checkpoints in memory (topology.mirror)", remedy)


def _write_file(path: Path, attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    try:
        _make(path.parent)
        with create(path) as file:
            file.attrs.update(attributes)
            paths = places(arrays)
            large = [_place(file, paths[name], array) for name, array in arrays.items()]
        with open(path, "r+b", buffering=0, opener=regular) as raw:
            for offset, array in filter(None, large):
                _write(raw.fileno(), offset, array)
        fault_point("file-written")
        seal(path)
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _make(directory: Path) -> None:
    """Make the directory of an unfinished checkpoint unless another rank has; raise OSError for a link."""
    try:
        with open_directory(directory, make=True):
            pass
    except FileNotFoundError as error:
        raise cannot_write(directory.parent, error) from error


def _place(file: h5py.File, name: str, array: np.ndarray) -> tuple[int, np.ndarray] | None:
    """Write a small array; return the offset in the file for a large one, and the array."""
    if array.nbytes <= SLICE or not array.flags.c_contiguous:
        file.create_dataset(name, data=array)
        return None
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dataset = file.create_dataset(name, array.shape, array.dtype, dcpl=properties)
    offset: int = dataset.id.get_offset()
    return offset, array


def _write(descriptor: int, offset: int, array: np.ndarray) -> None:
    """Write an array into a file slice by slice; HDF5 would take twice as long."""
    data = array.data.cast("B")
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + SLICE], offset + done)


def save_shard(
    directory: Path,
    number: int,
    range: Range,
    state: Mapping[str, np.ndarray],
    finite: bool = False,
    base: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write the file of a shard's `state`, from `ShardState.state`, and of its range of the flat parameter vector.

    The arrays ``tables/NAME/...``, beside the state, are of the server's rows of tables. With `finite`, write nothing
    if a parameter or an element of a row is NaN or infinite: a run that fails because of it resumes from an earlier
    checkpoint. `base` has attributes of a file without rows that are in another one. Raise MpidlError for that, or if
    the file can't be written.
    """
    for name, values in state.items() if finite else ():
        table = name.startswith(f"{TABLES}/") and name.endswith("/rows")
        # The extremes show it without memory for a mask.
        if (table or name == "parameters") and values.size and not np.isfinite([values.min(), values.max()]).all():
            what = f"rows of table {quoted(name[len(TABLES) + 1 : -len('/rows')])}" if table else "parameters"
            raise DivergenceError(f"{what} of shard {number} are NaN or infinite: {NOT_FINITE}")
    attributes = {"start": range.start, "stop": range.stop, "clock": int(state["clock"]), **base}
    write_file(directory / shard_file(number), attributes, state)


class Described(msgspec.Struct, frozen=True):
    """What an index has of another file: its seal and, of a shard's, the range and the vectors' dtypes by name.

    `base` is where its other rows of tables are, if anywhere.
    """

    seal: str
    range: tuple[int, int] = (0, 0)
    vectors: dict[str, str] = {}
    base: Base | None = None


def describe_file(path: Path) -> Described:
    """Return what an index has of a sealed file; raise OSError if it can't be read, or isn't sealed."""
    seal = str(recorded(path))
    if not path.name.startswith(SHARD):
        return Described(seal)
    held, vectors = describe(path)
    dtypes = {name: dtype.str for name, dtype in vectors.items()}
    return Described(seal, (held.start, held.stop), dtypes, Base.of(path))


class CheckpointIndex(Struct, frozen=True, eq=False):
    """What the index of a checkpoint has beside the description of other files.

    Attributes
    ----------
    layout : Layout
        The model's tensors.
    shards : int
        Number of shards.
    position : Position
    config : str
        The run's resolved configuration as TOML text.
    version : str
        The package's version.
    data : mapping of str to str
        Description of the run's data.
    others : sequence of str
        Names of the checkpoint's files beside the index and the shards.
    constants : mapping of str to array
        Tensors of the model that training doesn't change.
    aliases : mapping of str to str
        Other names of tensors of the layout.
    tables : sequence of TableSpec
        The model's tables.
    """

    layout: Layout
    shards: int
    position: Position
    config: str
    version: str
    data: Mapping[str, str]
    others: Sequence[str] = ()
    constants: Mapping[str, np.ndarray] = {}
    aliases: Mapping[str, str] = {}
    tables: Sequence[TableSpec] = ()

    @property
    def names(self) -> list[str]:
        """The names of the checkpoint's other files."""
        return [*map(shard_file, range(self.shards)), *self.others]

    def write(self, directory: Path, files: Mapping[str, Described]) -> None:
        """Write and seal the index over all `names`, given what it has of each; these files may lie elsewhere.

        Raise MpidlError if it can't be written.
        """
        path = directory / INDEX
        data, aliases = (msgspec.json.encode(dict(each)).decode() for each in (self.data, self.aliases))
        try:
            with create(path) as file:
                file.attrs.update(
                    config=self.config, version=self.version, shards=self.shards, data=data, aliases=aliases,
                    **{RUN: os.fsencode(os.path.realpath(directory.parents[1]))}, **self.position.attributes(),
                )  # fmt: skip
                for name, place in places(self.constants).items():
                    file.create_dataset(f"constants/{place}", data=self.constants[name])
                seals = file.create_group("files").attrs
                for name in self.names:
                    seals[name] = files[name].seal
                    if (base := files[name].base) is not None:
                        file.require_group(BASES).attrs[name] = f"{base.step} {base.seal}"
                file[LAYOUT] = encoded_layout(self.layout)
                if self.tables:
                    file[TABLES] = msgspec.json.encode(self.tables).decode()
                _map(file, self.layout, [files[shard_file(number)] for number in range(self.shards)])
            seal(path)
            fault_point("index-written")
        except (OSError, RuntimeError) as error:
            raise cannot_write(path, error) from error


def save_index(directory: Path, index: CheckpointIndex) -> None:
    """Write the index over the sealed files in `directory`, then rename that to the checkpoint's final name.

    The files are named by the index because a directory's listing may lag behind where ranks of several nodes write.
    Raise MpidlError if a file can't be written or read, or isn't sealed.

    Parameters
    ----------
    directory : Path
        From `mpidl.storage.files.scratch`.
    index : CheckpointIndex
    """
    try:
        index.write(directory, {name: describe_file(directory / name) for name in index.names})
        sync(directory)
        give_name(directory, index.position.step)
        fault_point("checkpoint-named")
    except (OSError, RuntimeError) as error:
        raise cannot_write(directory / INDEX, error) from error


def give_name(directory: Path, step: int) -> None:
    """Give a complete checkpoint its final name, in place of an earlier one of the same step.

    If the process dies between the two renamings, `mpidl.storage.checkpoints.sweep` restores a checkpoint of this step.
    """
    target = directory.parent / str(step)
    replaced = set_aside(target, "replaced") if os.path.lexists(target) else None
    directory.rename(target)
    sync(target.parent)
    if replaced is not None:
        remove(replaced)


def _map(file: h5py.File, layout: Layout, shards: Sequence[Described]) -> None:
    """Present the shards' vectors as tensors."""
    parts: dict[str, list[tuple[int, Slice]]] = {name: [] for name in layout.shapes}
    for number, shard in enumerate(shards):
        for part in layout.within(Range(*shard.range)):
            parts[part.name].append((number, part))
    paths = places(layout.shapes)
    for vector, dtype in shards[0].vectors.items():
        for name, shape in layout.shapes.items():
            virtual = h5py.VirtualLayout(shape, dtype)
            for number, part in parts[name]:
                held = Range(*shards[number].range)
                source = h5py.VirtualSource(shard_file(number), vector, (held.size,), dtype)
                first = part.start - held.start
                virtual[part.box.slices(Box.whole(shape))] = source[first : first + part.size]
            file.create_virtual_dataset(f"{vector}/{paths[name]}", virtual)
