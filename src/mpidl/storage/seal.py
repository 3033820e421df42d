"""Files that show any change of their bytes: HDF5 after a line of text that has the checksum of all that follows.

HDF5 leaves the first `BLOCK` bytes of a file to its writer and begins after them: h5py and h5dump read a sealed file
as any other. ``head -1`` shows the seal.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import xxhash

#: Bytes before the HDF5 part of a file.
BLOCK = 512

#: Bytes that are read at a time. A thread beside a busy one may wait 5 ms for the GIL after each.
PIECE = 1 << 23


class Seal(NamedTuple):
    """What follows the first `BLOCK` bytes of a file.

    Attributes
    ----------
    size : int
        Number of bytes.
    checksum : str
        Their XXH3 checksum of 128 bits, as hexadecimal digits.
    """

    size: int
    checksum: str

    def __str__(self) -> str:
        return f"xxh3_128 of the {self.size} bytes from byte {BLOCK} on: {self.checksum}"

    def block(self) -> bytes:
        """Return the first `BLOCK` bytes of the sealed file."""
        return f"{self}\n".encode().ljust(BLOCK, b"\0")

    @classmethod
    def parse(cls, text: str) -> Seal:
        """Return the seal that a text begins with.

        Raises
        ------
        ValueError
            It begins with none.
        """
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"no seal: {text!r}")
        return cls(int(match[1]), match[2])


_TEXT = re.compile(rf"xxh3_128 of the (\d+) bytes from byte {BLOCK} on: (\w+)")


def create(path: Path) -> h5py.File:
    """Return a new HDF5 file with room for a seal."""
    return h5py.File(path, "w", userblock_size=BLOCK)


def seal(path: Path) -> None:
    """Seal a file that `create` began and that is complete and closed, and wait until it is on disk.

    It reads the whole file, and rarely holds the GIL meanwhile.

    Raises
    ------
    OSError
        The file can't be read or written.
    """
    with path.open("r+b") as file:
        _, found = examine(path)
        file.write(found.block())
        file.flush()
        os.fsync(file.fileno())


def examine(path: Path) -> tuple[bytes, Seal]:
    """Read a whole file; return its first `BLOCK` bytes and the seal that they should hold."""
    checksum, piece = xxhash.xxh3_128(), np.empty(PIECE, np.uint8).data
    with path.open("rb", buffering=0) as file:
        block = file.read(BLOCK)
        while count := file.readinto(piece):
            checksum.update(piece[:count])
        return block, Seal(file.tell() - len(block), checksum.hexdigest())


def recorded(path: Path) -> Seal:
    """Return the seal that a file bears, which need not be right.

    Raises
    ------
    OSError
        The file can't be read or isn't sealed.
    """
    with path.open("rb", buffering=0) as file:
        block = file.read(BLOCK)
    try:
        return Seal.parse(block.decode())
    except ValueError as error:
        raise OSError(f"{path.name} isn't sealed") from error
