"""CIFAR-10 in its binary version (https://www.cs.toronto.edu/~kriz/cifar.html).

A record is a label byte and the 3072 bytes of an image: 32 rows of 32 red values, then the green and the blue ones.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.dataset import ArraySplit, Dataset
from mpidl.errors import UsageError
from mpidl.paths import user_path
from mpidl.schema import Checked

SHAPE = (32, 32, 3)
CLASSES = 10
BYTES_PER_READ = 1 << 20
RECORD = 1 + 32 * 32 * 3
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class Cifar10(Checked):
    """CIFAR-10: inputs (32, 32, 3), 10 classes, 50,000 training and 10,000 test samples.

    `open` reads and checks the labels; the first `gather` or `load` reads the images.

    Attributes
    ----------
    path : str
        The directory with data_batch_1.bin to data_batch_5.bin and test_batch.bin; its parent, if it is named
        cifar-10-batches-bin; or cifar-10-binary.tar.gz or its directory: the archive is unpacked in memory.
    """

    name: ClassVar[str] = "cifar10"
    path: str

    def open(self) -> Dataset:
        files = _files(user_path(self.path))
        train, test = (_split([files[name] for name in names]) for names in (TRAIN, [TEST]))
        return Dataset(self.name, SHAPE, CLASSES, train, test)


def _split(files: Sequence[NDArray[np.uint8]]) -> ArraySplit:
    def images() -> NDArray[np.uint8]:
        planes = np.concatenate([records[:, 1:] for records in files]).reshape(-1, 3, 32, 32)
        return planes.transpose(0, 2, 3, 1)

    return ArraySplit(images, np.concatenate([records[:, 0] for records in files]))


def _files(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the records (n, 3073) of each file by its name."""
    if path.is_file():
        return _unpacked(path)
    if not path.is_dir():
        raise UsageError(f"data.path: {path}: no such directory, expected one with {TRAIN[0]} to {TEST}")
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    if not (folder / TRAIN[0]).exists() and (path / ARCHIVE).is_file():
        return _unpacked(path / ARCHIVE)
    files = {}
    for name in (*TRAIN, TEST):
        file = folder / name
        if not file.is_file():
            raise UsageError(f"data.path: {folder} has no {name}, expected {TRAIN[0]} to {TRAIN[-1]} and {TEST}")
        # Memory-mapped: a node's ranks share the pages, and ranks that don't train never load the images.
        contents = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8)
        files[name] = _records(str(file), contents)
    return files


def _unpacked(archive: Path) -> dict[str, NDArray[np.uint8]]:
    files = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                name = Path(member.name).name
                stream = members.extractfile(member) if name in (*TRAIN, TEST) else None
                if stream is not None:
                    contents = np.frombuffer(stream.read(), np.uint8)
                    files[name] = _records(f"{archive}: {name}", contents)
            # The checksum is behind the padding after the last member.
            while members.fileobj is not None and members.fileobj.read(BYTES_PER_READ):
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data.path: {archive}: not a valid {ARCHIVE} ({error})") from None
    for name in (*TRAIN, TEST):
        if name not in files:
            raise UsageError(f"data.path: {archive} has no {name}, expected {ARCHIVE}")
    return files


def _records(name: str, contents: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if not contents.size or contents.size % RECORD:
        raise UsageError(f"{name}: {contents.size} bytes, expected a multiple of {RECORD}")
    records = contents.reshape(-1, RECORD)
    wrong = np.flatnonzero(records[:, 0] >= CLASSES)
    if wrong.size:
        found = f"label {records[wrong[0], 0]} at index {wrong[0]}"
        raise UsageError(f"{name}: {found}, expected 0 to {CLASSES - 1}")
    return records
