"""Writing the files of a checkpoint beside other work."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpidl.errors import NOT_FINITE, DivergenceError, MpidlError
from mpidl.launch.points import point
from mpidl.launch.shared_memory import check_free
from mpidl.parameters import Range
from mpidl.paths import regular
from mpidl.storage.files import INTERIM, cannot_write, places, shard_file
from mpidl.storage.integrity import create, seal

#: Bytes per write, and size of the largest array that HDF5 itself writes.
SLICE = 1 << 20
#: Bytes that an interim checkpoint leaves free where it lies, for others who write there.
RESERVE = 1 << 26
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
