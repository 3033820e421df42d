"""Removal of checkpoints: of directories with the names and the contents of this package's own, and of nothing else.

People keep other things beside checkpoints, such as ``.git``, and a link may lead to anything.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from mpidl.paths import open_directory, regular
from mpidl.storage.files import INDEX, MEMBER
from mpidl.storage.integrity import BLOCK, SIGNATURE, Seal

#: Bytes of the largest file beside checkpoints that is removed.
LARGEST = 1 << 24


def is_own(directory: Path) -> bool:
    """Return whether a directory is a checkpoint, or what is left of one.

    All it holds are files with names of a checkpoint's. One of them is sealed, while others may be damaged; or all have
    an empty place for the seal, as long as they are being written.
    """
    with suppress(OSError), open_directory(directory) as descriptor:
        return _members(descriptor) is not None
    return False


def is_complete(directory: Path) -> bool:
    """Return whether a directory `is_own` and has an index, as every checkpoint under its final name has."""
    return is_own(directory) and os.path.lexists(directory / INDEX)


def remove(directory: Path) -> bool:
    """Remove a directory if `is_own` says so; return whether it is gone. What comes into it meanwhile stays."""
    with suppress(OSError), open_directory(directory) as descriptor:
        if (members := _members(descriptor)) is not None:
            for name in members:
                os.unlink(name, dir_fd=descriptor)
            os.rmdir(directory)
            return True
    return False


def remove_file(file: Path, is_own: Callable[[bytes], bool]) -> None:
    """Remove a file, if there is one, whose content `is_own`; raise OSError if anything else is there."""
    try:
        with open(file, "rb", opener=regular) as opened:
            content = opened.read(LARGEST)
    except FileNotFoundError:
        return
    if not is_own(content):
        raise OSError(errno.EEXIST, "the file is not a run's, expected no such name", str(file))
    file.unlink()


def set_aside(checkpoint: Path, why: str) -> Path:
    """Rename a checkpoint, so that it counts no more, to a name with the suffix `why`; return its new path.

    Raise OSError if it isn't a checkpoint of this package.
    """
    if not is_complete(checkpoint):
        found = f"{checkpoint.name} is there and is not a checkpoint, expected no such name"
        raise OSError(errno.EEXIST, found, str(checkpoint))
    aside = checkpoint.with_name(f".{checkpoint.name}-{secrets.token_hex(8)}.{why}")
    checkpoint.rename(aside)
    return aside


def _members(directory: int) -> list[str] | None:
    """Return the names of the files in an open directory that `is_own`; None if it isn't."""
    names = os.listdir(directory)
    if not all(map(MEMBER.fullmatch, names)):
        return None
    sealed, blank = False, True
    for name in names:
        with open(name, "rb", opener=partial(regular, directory=directory)) as file:
            begin = file.read(BLOCK + len(SIGNATURE))
            sealed |= _is_sealed(begin)
            blank &= not begin[:BLOCK].strip(b"\0") and begin[BLOCK:].strip(b"\0") in (b"", SIGNATURE)
    return names if sealed or blank else None


def _is_sealed(begin: bytes) -> bool:
    with suppress(ValueError):
        Seal.parse(begin[:BLOCK].decode())
        return True
    return False
