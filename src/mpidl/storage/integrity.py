"""Whether a checkpoint is as it was saved, byte for byte."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import h5py

from mpidl.errors import MpidlError
from mpidl.storage.files import INDEX, cannot_read, describe, shard_file
from mpidl.storage.seal import BLOCK, Seal, examine

#: The first bytes of an HDF5 file without a seal.
_UNSEALED = b"\x89HDF\r\n\x1a\n"


class DamagedError(MpidlError):
    """A checkpoint is not as it was saved; the text names the file."""


def verify(path: Path, rank: int = 0, size: int = 1) -> None:
    """Check that a checkpoint is as it was saved.

    Each of `size` ranks checks the index and its own part of the other files; one rank checks everything.

    Parameters
    ----------
    path : Path
        The checkpoint's directory.
    rank, size : int

    Raises
    ------
    DamagedError
        A byte has changed; a file is missing, half-written, of another checkpoint or one too many.
    MpidlError
        A file can't be read, for example because permission is denied.
    """
    index = path / INDEX
    with _reading(index):
        block, found = examine(index)
    if block.startswith(_UNSEALED):
        _verify_earlier(path, rank, size)
        return
    if block != found.block():
        raise _damaged(index, "checksum")
    with _reading(index), h5py.File(index) as file:
        if "files" not in file:
            raise DamagedError(f"{path}: {INDEX} is not an index")
        seals = {name: Seal.parse(text) for name, text in file["files"].attrs.items()}
        step = int(file.attrs["step"])
    if path.name.isdecimal() and int(path.name) != step:
        raise DamagedError(f"{path}: {INDEX} is of step {step}")
    if rank == 0:
        _find_strangers(path, {INDEX, *seals})
    for name in list(seals)[rank::size]:
        _verify_file(path / name, seals[name])


def _verify_file(path: Path, expected: Seal) -> None:
    with _reading(path):
        found_size, expected_size = path.stat().st_size, BLOCK + expected.size
        if found_size != expected_size:
            raise _damaged(path, f"{found_size} bytes, {expected_size} were saved")
        block, found = examine(path)
    if block != found.block():
        raise _damaged(path, "checksum")
    if found != expected:
        raise DamagedError(f"{path.parent}: {path.name} and {INDEX} are of different checkpoints")


def _verify_earlier(path: Path, rank: int, size: int) -> None:
    """Check what version 0.1.0 saved, which has checksums of the datasets only."""
    index = path / INDEX
    with _reading_datasets(index), h5py.File(index) as file:
        shards = [path / shard_file(number) for number in range(int(file.attrs["shards"]))]
    if rank == 0:
        _find_strangers(path, {INDEX, *(shard.name for shard in shards)})
    stop = 0
    for number, shard in enumerate(shards):
        with _reading(shard):
            shard.open("rb").close()
        with _reading_datasets(shard):
            part, vectors = describe(shard)
            if part.start != stop:
                raise DamagedError(f"{path}: {shard.name} begins at parameter {part.start} instead of {stop}")
            stop = part.stop
            with h5py.File(shard) as file:
                for name in vectors if number % size == rank else ():
                    if zlib.crc32(file[name][...].data) != int(file[name].attrs["crc32"]):
                        raise _damaged(shard, f"checksum of {name}")


def _find_strangers(path: Path, names: set[str]) -> None:
    """Raise an error if there are more HDF5 files than those of the checkpoint."""
    with _reading(path):
        strangers = sorted(name for name in os.listdir(path) if name.endswith(".h5") and name not in names)
    if strangers:
        raise DamagedError(f"{path}: {strangers[0]} doesn't belong to it")


def _damaged(file: Path, how: str) -> DamagedError:
    return DamagedError(f"{file.parent}: {file.name} is damaged ({how})")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell a missing file from one that can't be read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise DamagedError(f"{path.parent}: {path.name} is missing") from None
    except OSError as error:
        raise cannot_read(path, error) from error


@contextlib.contextmanager
def _reading_datasets(path: Path) -> Iterator[None]:
    """Take whatever h5py says about an existing file for damage."""
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise _damaged(path, " ".join(str(error).split())) from error
