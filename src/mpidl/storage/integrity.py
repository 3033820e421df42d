"""Checks that a checkpoint is as it was saved, byte for byte, by the checksums in its files' seals.

A sealed file is HDF5 after a block of text with the checksum of everything that follows. HDF5 leaves the first `BLOCK`
bytes of a file to its writer and begins after them: h5py and h5dump read a sealed file like any other, and ``head -1``
shows the seal.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import xxhash

from mpidl.errors import MpidlError, quoted
from mpidl.paths import open_regular, regular, writing_hdf5
from mpidl.storage.files import INDEX, Base, bases_of, cannot_read, readable
from mpidl.storage.own_values import attributes, find, opened

#: Bytes before the HDF5 part of a file.
BLOCK = 512

#: Bytes that are read at a time. A thread beside a busy one may wait 5 ms for the GIL after each.
PIECE = 1 << 23


class Seal(NamedTuple):
    """Number of the bytes after the first `BLOCK` of a file, and their XXH3 checksum of 128 bits in hexadecimal."""

    size: int
    checksum: str

    def __str__(self) -> str:
        return f"xxh3_128 of the {self.size} bytes from byte {BLOCK} on: {self.checksum}"

    def block(self) -> bytes:
        """Return the first `BLOCK` bytes of the sealed file."""
        return f"{self}\n".encode().ljust(BLOCK, b"\0")

    @classmethod
    def parse(cls, text: str) -> Seal:
        """Return the seal at the beginning of a text; raise ValueError if there is none."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"no seal: {text!r}")
        return cls(int(match[1]), match[2])


#: The name of any other file of a checkpoint.
_NAME = re.compile(r"[\w-]+\.h5")
_TEXT = re.compile(rf"xxh3_128 of the (\d+) bytes from byte {BLOCK} on: (\w+)")


def create(path: Path) -> AbstractContextManager[h5py.File]:
    """Return a new HDF5 file with room for a seal, a context; raise OSError if there is anything at its path."""
    return writing_hdf5(path, "x+", userblock_size=BLOCK)


def seal(path: Path) -> None:
    """Seal a complete, closed file made by `create`, and wait until it is on disk; raise OSError if that fails.

    It reads the whole file, and rarely holds the GIL meanwhile.
    """
    with open(path, "r+b", opener=regular) as file:
        _, found = examine(path)
        file.write(found.block())
        file.flush()
        os.fsync(file.fileno())


def examine(path: Path) -> tuple[bytes, Seal]:
    """Read a whole file; return its first `BLOCK` bytes and the seal that they should hold."""
    checksum, piece = xxhash.xxh3_128(), np.empty(PIECE, np.uint8).data
    with open_regular(path) as file:
        block = file.read(BLOCK)
        while count := file.readinto(piece):
            checksum.update(piece[:count])
        return block, Seal(file.tell() - len(block), checksum.hexdigest())


def recorded(path: Path) -> Seal:
    """Return a file's seal without checking it; raise OSError if the file can't be read or isn't sealed."""
    with open_regular(path) as file:
        block = file.read(BLOCK)
    try:
        return Seal.parse(block.decode())
    except ValueError as error:
        raise OSError(f"{path.name} isn't sealed") from error


#: The first bytes of an HDF5 file, after its seal.
SIGNATURE = b"\x89HDF\r\n\x1a\n"


class DamagedError(MpidlError):
    """A checkpoint differs from what was saved; the text names the file."""


def verify(path: Path, rank: int = 0, size: int = 1) -> None:
    """Check that a checkpoint is as it was saved.

    Each of `size` ranks checks the index and its own part of the other files; one rank checks everything. Raise
    DamagedError if a byte has changed, or if a file is missing, incomplete, superfluous or from another checkpoint,
    also one of an earlier checkpoint with rows that this one lacks; and MpidlError if a file can't be read.
    """
    if path.is_symlink():
        raise DamagedError(f"{path}: a link, expected a directory")
    step, seals, bases = verify_index(path)
    if path.name.isdecimal() and int(path.name) != step:
        raise DamagedError(f"{path}: {INDEX} is of step {step}")
    if rank == 0:
        _find_strangers(path, {INDEX, *seals})
    for name in list(seals)[rank::size]:
        verify_file(path / name, seals[name])
        if (base := bases.get(name)) is not None:
            try:
                verify_file(path.parent / str(base.step) / name, Seal.parse(base.seal))
            except (DamagedError, ValueError) as error:
                found = f"{name} lacks rows of tables that are in step {base.step}"
                raise DamagedError(f"{path}: {found} ({error})") from error


def verify_index(path: Path) -> tuple[int, dict[str, Seal], dict[str, Base]]:
    """Check the index of a checkpoint; return its step and, of its other files by their names, the seals and the bases.

    Raise DamagedError if it is not as it was saved, and MpidlError if it can't be read.
    """
    index = path / INDEX
    with _reading(index):
        block, found = examine(index)
    if block != found.block():
        raise _damaged(index, "checksum")
    with readable(index), opened(index) as file:
        if (files := find(file, "files")) is None:
            raise DamagedError(f"{path}: {INDEX} is not an index")
        seals = {name: Seal.parse(text) for name, text in attributes(files).items()}
        step, bases = int(attributes(file)["step"]), bases_of(file)
    for name in seals:
        if not _NAME.fullmatch(name):
            raise DamagedError(f"{path}: {INDEX} names the file {quoted(name)}, expected a file in the same directory")
    return step, seals, bases


def verify_file(path: Path, expected: Seal) -> None:
    """Check that a file has the seal that its checkpoint's index says; raise DamagedError if it doesn't."""
    with _reading(path):
        with open_regular(path) as file:
            found_size, expected_size = os.fstat(file.fileno()).st_size, BLOCK + expected.size
        if found_size != expected_size:
            raise _damaged(path, f"{found_size} bytes, {expected_size} were saved")
        block, found = examine(path)
    if block != found.block():
        raise _damaged(path, "checksum")
    if found != expected:
        raise DamagedError(f"{path.parent}: {path.name} and {INDEX} are of different checkpoints")


def _find_strangers(path: Path, names: set[str]) -> None:
    """Raise an error if there are HDF5 files that aren't the checkpoint's."""
    with _reading(path):
        strangers = sorted(name for name in os.listdir(path) if name.endswith(".h5") and name not in names)
    if strangers:
        raise DamagedError(f"{path}: {strangers[0]} doesn't belong to it")


def _damaged(file: Path, how: str) -> DamagedError:
    return DamagedError(f"{file.parent}: {file.name} is damaged ({how})")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report a missing file as damage, and one that can't be read as such."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise DamagedError(f"{path.parent}: {path.name} is missing") from None
    except OSError as error:
        raise cannot_read(path, error) from error
