"""Writing the files of a checkpoint beside other work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpidl.errors import NOT_FINITE, MpidlError
from mpidl.parameters import Range
from mpidl.storage.files import cannot_write, shard_file
from mpidl.storage.seal import create, seal

#: Bytes that are written at a time, and the largest array that HDF5 itself writes.
SLICE = 1 << 20


class BackgroundTask:
    """Carries out an action in a thread, one at a time; what it raises is raised where its end is asked for."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._errors: list[Exception] = []

    @property
    def active(self) -> bool:
        """Whether an action has begun whose end nobody has been told."""
        return self._thread is not None

    def begin(self, action: Callable[[], object]) -> None:
        """Begin an action. Nobody is told the end of the one before, if that is still going on."""
        errors = self._errors = []

        def run() -> None:
            try:
                action()
            except Exception as error:
                errors.append(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def ended(self) -> bool:
        """Return whether the action has ended since the last call."""
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        if self._errors:
            raise self._errors[0]
        return True


def write_file(path: Path, attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write and seal an HDF5 file, and wait until it is on disk.

    Parameters
    ----------
    path : Path
        Its directory is made if it doesn't exist.
    attributes : mapping
        Attributes of the file's root.
    arrays : mapping of str to array
        Datasets by name. They must not change meanwhile.

    Raises
    ------
    MpidlError
        The file can't be written, for example because the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with create(path) as file:
            file.attrs.update(attributes)
            large = [_place(file, name, array) for name, array in arrays.items()]
        with path.open("r+b", buffering=0) as raw:
            for offset, array in filter(None, large):
                _write(raw.fileno(), offset, array)
        seal(path)
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _place(file: h5py.File, name: str, array: np.ndarray) -> tuple[int, np.ndarray] | None:
    """Write a small array; return where a large one is to be written in the file."""
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
    """Write a shard's file.

    Parameters
    ----------
    directory : Path
        See `mpidl.storage.files.scratch`.
    number : int
        The shard's number.
    range : Range
        The shard's elements of the flat parameter vector.
    state : mapping of str to array
        See `mpidl.shards.state.ShardState.state`.
    finite : bool
        Write nothing if a parameter is NaN or infinite: a run that ends of it resumes from the checkpoint before.

    Raises
    ------
    MpidlError
        The file can't be written, or a parameter is not finite though it should be.
    """
    parameters = state["parameters"]
    # The extremes tell it without memory for a mask.
    if finite and not np.isfinite([parameters.min(), parameters.max()]).all():
        raise MpidlError(f"parameters of shard {number} are NaN or infinite: {NOT_FINITE}")
    attributes = {"start": range.start, "stop": range.stop, "clock": int(state["clock"])}
    write_file(directory / shard_file(number), attributes, state)
