"""Reading HDF5 files of a run, which may be untrusted.

Groups and datasets must not be links, and their values must lie in the same file or, for an index, in the checkpoint's
shards. Declared sizes are checked before memory is allocated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import h5py

from mpidl.paths import by_flags, open_regular
from mpidl.schema import MALFORMED

#: Errors of h5py, and of what reads the values in a file that isn't as it should be.
UNREADABLE = (OSError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, *MALFORMED)

#: The datasets of other files, by the files' names, that the virtual datasets of a file may show.
Sources = Mapping[str, Collection[str]]
NONE: Sources = {}


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; raise OSError if it is none, or no regular file."""
    open_regular(path).close()
    with by_flags(lambda **flags: h5py.File(path, **flags), (None, False, True)) as file:
        yield file


def find(group: h5py.Group, path: str) -> Any:
    """Return the group or dataset under a path, such as ``"rule/sum"``; None if there is nothing.

    Raise OSError if there is a link on the way: HDF5 would follow it, into other files, too.
    """
    found: Any = group
    for name in filter(None, path.split("/")):
        found = _child(found, name, path) if isinstance(found, h5py.Group) else None
    return found


def _child(group: h5py.Group, name: str, path: str) -> Any:
    links, encoded = group.id.links, name.encode()
    if not links.exists(encoded):
        return None
    if links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
        raise OSError(f"{path} is a link, expected none")
    return group[name]


def dataset(group: h5py.Group, path: str, sources: Sources = NONE) -> h5py.Dataset:
    """Return a dataset whose values are in its file, or in `sources`.

    Raise OSError if there is none, or if it has values elsewhere, or fewer than its shape says.
    """
    found = find(group, path)
    if not isinstance(found, h5py.Dataset):
        raise OSError(f"no dataset {path}")
    _check(path, found, sources)
    return found


def _check(path: str, found: h5py.Dataset, sources: Sources) -> None:
    created = found.id.get_create_plist()
    layout = created.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        for number in range(created.get_virtual_count()):
            file, name = created.get_virtual_filename(number), created.get_virtual_dsetname(number)
            if name.strip("/") not in sources.get(file, ()):
                raise OSError(f"{path} shows {name} of {file}, expected values of its own checkpoint")
    elif layout == h5py.h5d.CHUNKED or created.get_external_count():
        kind = "chunks" if layout == h5py.h5d.CHUNKED else "another file"
        raise OSError(f"{path} has its values in {kind}, expected one piece of the same file")
    elif found.id.get_storage_size() < nbytes(path, found):
        raise OSError(f"{path} has fewer values than its shape {found.shape} says")


def nbytes(name: str, values: Any) -> int:
    """Return the size in bytes of a dataset or attribute; raise OSError if its shape and dtype don't tell it."""
    shape, dtype = values.shape, values.dtype  # h5py asks HDF5 each time
    if shape is None or (dtype.kind == "O" and (shape or h5py.check_string_dtype(dtype) is None)):
        raise OSError(f"{name} is of {dtype}, expected numbers or one text")
    size: int = prod(shape) * dtype.itemsize
    return size


def attributes(item: Any) -> dict[str, Any]:
    """Return the attributes of a group or file; raise OSError if one is neither of numbers nor one text."""
    found = {}
    for name in item.attrs:
        nbytes(name, item.attrs.get_id(name))
        found[name] = item.attrs[name]
    return found


def walk(file: h5py.File, group: str, most: int, sources: Sources = NONE) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield all datasets in a group, as `dataset` returns them, and their paths in it, in order.

    Raise OSError if they have more than `most` bytes.
    """
    waiting, seen = [(file, group, "")], set()
    while waiting:
        parent, name, path = waiting.pop()
        found = find(parent, name)
        if isinstance(found, h5py.Dataset):
            _check(path, found, sources)
            most -= nbytes(path, found)
            if most < 0:
                raise OSError(f"the datasets in {group} have more bytes than the files that hold them")
            yield path, found
        elif isinstance(found, h5py.Group) and (address := h5py.h5o.get_info(found.id).addr) not in seen:
            seen.add(address)  # a group may be in itself
            waiting += [(found, each, f"{path}/{each}".removeprefix("/")) for each in sorted(found, reverse=True)]
