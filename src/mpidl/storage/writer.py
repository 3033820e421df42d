"""Writing the files of a checkpoint: those of shards beside other work, and the index that shows them as one model."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from mpidl.errors import NOT_FINITE, DivergenceError
from mpidl.launch.points import point
from mpidl.parameters import Box, Layout, Range, Slice
from mpidl.paths import regular
from mpidl.storage.files import INDEX, LAYOUT, cannot_write, describe, encoded_layout, places, shard_file, sync
from mpidl.storage.integrity import create, recorded, seal
from mpidl.storage.position import Position
from mpidl.storage.removal import remove, set_aside

#: Bytes per write, and size of the largest array that HDF5 itself writes.
SLICE = 1 << 20
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
    not change meanwhile. Raise MpidlError if the file can't be written, for example because the disk is full.
    """
    try:
        _make(path.parent)
        with create(path) as file:
            file.attrs.update(attributes)
            paths = places(arrays)
            large = [_place(file, paths[name], array) for name, array in arrays.items()]
        with open(path, "r+b", buffering=0, opener=regular) as raw:
            for offset, array in filter(None, large):
                _write(raw.fileno(), offset, array)
        point("file-written")
        seal(path)
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _make(directory: Path) -> None:
    """Make the directory of an unfinished checkpoint unless another rank has; raise FileExistsError for a link."""
    try:
        directory.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise
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
    directory: Path, number: int, range: Range, state: Mapping[str, np.ndarray], finite: bool = False
) -> None:
    """Write the file of a shard's `state`, from `ShardState.state`, and of its range of the flat parameter vector.

    With `finite`, write nothing if a parameter is NaN or infinite: a run that fails because of it resumes from an
    earlier checkpoint. Raise MpidlError for that, or if the file can't be written.
    """
    parameters = state["parameters"]
    # The extremes show it without memory for a mask.
    if finite and not np.isfinite([parameters.min(), parameters.max()]).all():
        raise DivergenceError(f"parameters of shard {number} are NaN or infinite: {NOT_FINITE}")
    attributes = {"start": range.start, "stop": range.stop, "clock": int(state["clock"])}
    write_file(directory / shard_file(number), attributes, state)


def save_index(
    directory: Path,
    layout: Layout,
    shards: int,
    position: Position,
    config: str,
    version: str,
    data: Mapping[str, str],
    others: Sequence[str] = (),
    constants: Mapping[str, np.ndarray] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> None:
    """Write the index over the sealed files in `directory`, then rename that to the checkpoint's final name.

    The files are named here because a directory's listing may lag behind where ranks of several nodes write. Raise
    MpidlError if a file can't be written or read, or isn't sealed.

    Parameters
    ----------
    directory : Path
        From `mpidl.storage.files.scratch`.
    layout : Layout
        The model's tensors.
    shards : int
        Number of shards.
    config : str
        The run's resolved configuration as TOML text.
    version : str
        The package's version.
    data : mapping of str to str
        Description of the run's data.
    others : sequence of str
        Names of the checkpoint's files beside the index and the shards.
    constants : mapping of str to array, optional
        Tensors of the model that training doesn't change.
    aliases : mapping of str to str, optional
        Other names of tensors of the layout.
    """
    encoded, other_names = (msgspec.json.encode(dict(each or {})).decode() for each in (data, aliases))
    path, names = directory / INDEX, [shard_file(number) for number in range(shards)]
    try:
        sources = [describe(directory / name) for name in names]
        with create(path) as file:
            file.attrs.update(
                config=config, version=version, shards=shards, data=encoded, aliases=other_names,
                **position.attributes(),
            )  # fmt: skip
            for name, place in places(constants or {}).items():
                file.create_dataset(f"constants/{place}", data=(constants or {})[name])
            seals = file.create_group("files").attrs
            for name in (*names, *others):
                seals[name] = str(recorded(directory / name))
            file[LAYOUT] = encoded_layout(layout)
            _map(file, layout, sources)
        seal(path)
        point("index-written")
        sync(directory)
        _rename(directory, directory.parent / str(position.step))
        point("checkpoint-named")
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _rename(directory: Path, target: Path) -> None:
    """Give a complete checkpoint its final name, in place of an earlier one of the same step.

    If the process dies between the two renamings, `mpidl.storage.checkpoints.sweep` restores a checkpoint of this step.
    """
    replaced = set_aside(target, "replaced") if os.path.lexists(target) else None
    directory.rename(target)
    sync(target.parent)
    if replaced is not None:
        remove(replaced)


def _map(file: h5py.File, layout: Layout, shards: Sequence[tuple[Range, Mapping[str, np.dtype[Any]]]]) -> None:
    """Present the shards' vectors as tensors."""
    parts: dict[str, list[tuple[int, Slice]]] = {name: [] for name in layout.shapes}
    for number, (range, _) in enumerate(shards):
        for part in layout.within(range):
            parts[part.name].append((number, part))
    paths = places(layout.shapes)
    for vector, dtype in shards[0][1].items():
        for name, shape in layout.shapes.items():
            virtual = h5py.VirtualLayout(shape, dtype)
            for number, part in parts[name]:
                range = shards[number][0]
                source = h5py.VirtualSource(shard_file(number), vector, (range.size,), dtype)
                first = part.start - range.start
                virtual[part.box.slices(Box.whole(shape))] = source[first : first + part.size]
            file.create_virtual_dataset(f"{vector}/{paths[name]}", virtual)
