"""The files of a checkpoint: names, contents, and one-line errors about them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import msgspec
import numpy as np

from mpidl.errors import MpidlError
from mpidl.parameters import Box, Layout, Range
from mpidl.storage.own_values import NONE, UNREADABLE, Sources, attributes, dataset, find, opened, walk

#: Name of the file that presents the others as one model.
INDEX = "index.h5"

#: Attribute of the index: the real path of the run's directory.
RUN = "run"

#: Dataset of the index with the order of the tensors in the shards, by `encoded_layout`.
LAYOUT = "layout"

#: Group of a shard's file with the server's rows of the model's tables; dataset of the index with the tables, as JSON.
TABLES = "tables"
#: Group of a shard's file: matrices with a row for each of its parameters.
MATRICES = "matrix"


def scratch(checkpoints: Path, order: int, token: str = "") -> Path:
    """Return the directory in which a checkpoint is written; `order` is the ordinal of the order to save.

    The `token` is that of the present run, so that nothing can be there before it.
    """
    return checkpoints / f".{order}{token and f'-{token}'}"


def next_order(before: int, interim: bool) -> int:
    """Return the ordinal of an order to save that follows the order `before`: that of an interim checkpoint is even.

    An interim checkpoint is replaced by the next one, and is not written into the run's directory.
    """
    return before + 1 + (before % 2 == (not interim))


def is_interim(order: int) -> bool:
    """Return whether an order is one to save an interim checkpoint."""
    return order % 2 == 0


#: Names of the directories of unfinished and interim checkpoints, and of those that are being removed or replaced.
UNFINISHED = re.compile(r"\.(\d+)(-[0-9a-f]+)?(\.removed|\.replaced|\.interim)?")
#: How the name of an interim checkpoint's directory ends.
INTERIM = ".interim"
#: Names of the files of a checkpoint.
MEMBER = re.compile(r"index\.h5|[a-z]+(-\d+)+\.h5")


#: How the name of a shard's file begins.
SHARD = "shard-"


def shard_file(number: int) -> str:
    """Return the name of a shard's file."""
    return f"{SHARD}{number}.h5"


def replica_file(number: int, part: int = 0) -> str:
    """Return the name of the file of a replica's vectors, or of those of one rank of a cut replica."""
    return f"replica-{number}.h5" if part == 0 else f"replica-{number}-{part}.h5"


def encoded_layout(layout: Layout) -> str:
    """Return a layout's pieces as JSON: the name and the box of each, in the order of the vector."""
    return msgspec.json.encode([(part.name, part.box.ranges) for part in layout]).decode()


def decoded_layout(text: str | bytes, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """Return the layout of tensors of these shapes that `encoded_layout` has encoded.

    Raise ValueError if the text is malformed, or of other tensors.
    """
    found = msgspec.json.decode(text, type=list[tuple[str, tuple[Range, ...]]])
    return Layout(shapes.items(), [(name, Box(ranges)) for name, ranges in found])


def describe(path: Path) -> tuple[Range, dict[str, np.dtype]]:
    """Return the range of a shard's file, and the names and dtypes of its vectors.

    Raises
    ------
    OSError, KeyError
        It is not a readable file of a shard.
    """
    with opened(path) as file:
        given = attributes(file)
        held = Range(int(given["start"]), int(given["stop"]))
        names = ["parameters", *(f"rule/{state}" for state in find(file, "rule") or ())]
        vectors = {name: dataset(file, name) for name in names}
        for name, vector in vectors.items():
            if vector.shape != (held.size,):
                raise OSError(f"{name} has the shape {vector.shape}, expected ({held.size},)")
            if vector.dtype.kind not in "fiu":
                raise OSError(f"{name} is of {vector.dtype}, expected real numbers")
        return held, {name: vector.dtype for name, vector in vectors.items()}


#: Attributes of a shard's file whose tables lack rows that are in one of an earlier checkpoint: its step and its seal.
BASE, BASE_SEAL = "full", "full_seal"
#: Group of the index: for each of these files, as an attribute, the step and the seal.
BASES = "full"


class Base(NamedTuple):
    """The file of the same name in an earlier checkpoint, with rows of tables that a shard's file lacks."""

    step: int
    seal: str

    @classmethod
    def of(cls, path: Path) -> Base | None:
        """Return that of a shard's file, if there is one; raise OSError if it can't be read."""
        with opened(path) as file:
            given = attributes(file)
        return cls(int(given[BASE]), str(given[BASE_SEAL])) if BASE in given else None


def bases_of(index: h5py.File) -> dict[str, Base]:
    """Return the bases of a checkpoint's files by their names, given its index."""
    group = find(index, BASES)
    found = {} if group is None else attributes(group)
    return {name: Base(int(step), seal) for name, text in found.items() for step, _, seal in [str(text).partition(" ")]}


_ESCAPE = re.compile("%(00|25|2E|2F|__)")


def places(names: Iterable[str]) -> dict[str, str]:
    """Return the path of a dataset of HDF5 for each of some tensors, by their names; `tensor_name` is the inverse.

    It is the name, whose slashes separate groups, except where that can't be a path, or two tensors would share one.
    Then characters are escaped as in URLs: a NUL, a part ``.``, the slash after a beginning that is a tensor's name,
    and a ``%`` that would be taken for one of these. An empty part is ``%__``.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: name.count("/")):
        first, *others = (_escaped(part) for part in name.split("/"))
        for part in others:
            first = f"{first}{'%2F' if first in taken else '/'}{part}"
        found[name] = first
        taken.add(first)
    return found


def _escaped(part: str) -> str:
    """Return a part of a tensor's name as a part of a path."""
    if part in ("", "."):
        return "%2E" if part else "%__"
    return _ESCAPE.sub(r"%25\1", part).replace("\0", "%00")


def tensor_name(path: str) -> str:
    """Return the name of the tensor in a dataset."""
    return _ESCAPE.sub(lambda found: "" if found[1] == "__" else chr(int(found[1], 16)), path)


def datasets(path: Path, group: str = "/", sources: Sources = NONE) -> Iterator[tuple[str, Any]]:
    """Yield the names of the tensors and their datasets in a group of an HDF5 file, while it is open.

    There are none if there is no such group. Raise MpidlError if the file can't be read, or has values in files other
    than itself and the `sources` beside it.
    """
    with readable(path), opened(path) as file:
        held = sum(os.stat(each).st_size for each in (path, *(path.parent / name for name in sources)))
        for name, found in walk(file, group, held, sources):
            yield tensor_name(name), found


def sync(path: Path) -> None:
    """Wait until a file or directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise MpidlError if a file, something in it, or a directory can't be read in this context."""
    try:
        yield
    except UNREADABLE as error:
        raise cannot_read(path, error) from error


def cannot_write(path: Path, error: Exception) -> MpidlError:
    """Return the one-line error for a file that can't be written."""
    return MpidlError(f"{path}: can't be written: {_reason(error)}")


def cannot_read(path: Path, error: Exception) -> MpidlError:
    """Return the one-line error for a file that can't be read."""
    return MpidlError(f"{path}: can't be read: {_reason(error)}")


def _reason(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # HDF5 has the system's reason in the middle of a long message.
    return reason.partition("error message = '")[2].partition("'")[0] or reason
