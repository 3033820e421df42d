"""The files of a checkpoint: their names, what they say about themselves, and errors that name them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import msgspec
import numpy as np

from mpidl.errors import MpidlError
from mpidl.parameters import Box, Layout, Range

#: Name of the file that shows the others as one model.
INDEX = "index.h5"

#: Dataset of the index that says in which order the shards have the tensors; see `encoded_layout`.
LAYOUT = "layout"


def scratch(checkpoints: Path, order: int) -> Path:
    """Return the directory in which a checkpoint is written, given the ordinal of the order to save it."""
    return checkpoints / f".{order}"


def shard_file(number: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{number}.h5"


def replica_file(number: int, part: int = 0) -> str:
    """Return the name of the file of a replica's vectors or, if it is cut, of those that one of its ranks keeps."""
    return f"replica-{number}.h5" if part == 0 else f"replica-{number}-{part}.h5"


def relay_file(number: int) -> str:
    """Return the name of the file of what a relay's encodings have left out."""
    return f"relay-{number}.h5"


def encoded_layout(layout: Layout) -> str:
    """Return a layout's pieces as JSON: for each, in the order of the vector, the name and the box of the tensor."""
    return msgspec.json.encode([(part.name, part.box.ranges) for part in layout]).decode()


def decoded_layout(text: str | bytes, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """Return the layout of tensors of these shapes that `encoded_layout` has encoded.

    Raises
    ------
    ValueError
        The text is another, or of other tensors.
    """
    found = msgspec.json.decode(text, type=list[tuple[str, tuple[Range, ...]]])
    return Layout(shapes.items(), [(name, Box(ranges)) for name, ranges in found])


def describe(path: Path) -> tuple[Range, dict[str, np.dtype]]:
    """Return the range of a shard's file, and the names and dtypes of its vectors.

    Raises
    ------
    OSError, KeyError
        It is no readable file of a shard.
    """
    with h5py.File(path) as file:
        names = ["parameters", *(f"rule/{state}" for state in file.get("rule", {}))]
        return Range(int(file.attrs["start"]), int(file.attrs["stop"])), {name: file[name].dtype for name in names}


def sync(path: Path) -> None:
    """Wait until a file or directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: Exception) -> MpidlError:
    """Return the one-line error for a file that can't be written."""
    return MpidlError(f"{path}: can't be written: {_reason(error)}")


def cannot_read(path: Path, error: Exception) -> MpidlError:
    """Return the one-line error for a file that can't be read."""
    return MpidlError(f"{path}: can't be read: {_reason(error)}")


def _reason(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # HDF5 puts the system's reason into the middle of a long message.
    return reason.partition("error message = '")[2].partition("'")[0] or reason
