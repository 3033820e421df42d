"""Files of images: those of the MNIST family in the idx format, and CIFAR-10 in its binary version.

An idx file of bytes (http://yann.lecun.com/exdb/mnist) consists of a magic number (0x0800 + the number of dimensions),
the size of each dimension, all as big-endian 32-bit integers, and the bytes in C order.

A record of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html) is a label byte and the 3072 bytes of an image: 32
rows of 32 red values, then the green and the blue ones.
"""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.columns import Column, check
from mpidl.data.dataset import ArraySplit, Dataset
from mpidl.errors import UsageError
from mpidl.paths import user_path
from mpidl.schema import Checked, Count

BYTES_PER_READ = 1 << 18
BYTES_MAGIC = 0x0800


@dataclass(frozen=True)
class Idx(Checked):
    """The four files of MNIST, Fashion-MNIST or another dataset in this format.

    `open` reads and checks the labels and the headers of the images; the first `gather` or `load` reads the images.

    Attributes
    ----------
    path : str
        The directory with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
        t10k-labels-idx1-ubyte, each optionally gzipped with the suffix .gz.
    classes : int
        Labels are in [0, classes).
    """

    name: ClassVar[str] = "idx"
    path: str
    classes: Count = 10

    def open(self) -> Dataset:
        directory = user_path(self.path)
        if not directory.is_dir():
            found = "not a directory" if directory.exists() else "no such directory"
            raise UsageError(f"data.path: {self.path}: {found}, expected one with the four idx files")
        columns = [_columns(directory, part) for part in ("train", "t10k")]
        input_shape, classes = check(columns, self.classes)
        splits = (ArraySplit(images.values.read, labels.values) for images, labels in columns)
        return Dataset(self.name, input_shape, classes, *splits)


def _columns(directory: Path, part: str) -> tuple[Column, Column]:
    images = IdxFile(find(directory, f"{part}-images-idx3-ubyte"), 3)
    labels = IdxFile(find(directory, f"{part}-labels-idx1-ubyte"), 1)
    return Column(str(images.path), images), Column(str(labels.path), labels.read())


def find(directory: Path, name: str) -> Path:
    """Return the path of file `name` or `name`.gz in `directory`; UsageError if there is neither."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"data.path: {directory} has neither {name} nor {name}.gz")


class IdxFile:
    """An idx file of bytes with this number of dimensions, whose header has been read and checked.

    Raises
    ------
    UsageError
        It isn't such a file, or its size contradicts its header.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, dimensions: int) -> None:
        self.path = path
        self._header = 4 * (1 + dimensions)
        try:
            with self._stream() as stream:
                header = stream.read(self._header)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None
        if len(header) < self._header:
            raise UsageError(f"{path}: ends after {len(header)} bytes, expected a header of {self._header}")
        magic, *shape = np.frombuffer(header, ">u4").tolist()
        if magic != BYTES_MAGIC + dimensions:
            kind = f"idx{dimensions}, bytes"
            raise UsageError(f"{path}: magic number {magic}, expected {BYTES_MAGIC + dimensions} ({kind})")
        self.shape = tuple(shape)
        if self._length() != (self._header + math.prod(shape)) % 2**32:
            # Reading the whole file finds the defect, or shows that it is valid (several gzip members).
            self.read()

    def _stream(self) -> BinaryIO:
        return gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb")  # type: ignore[return-value]

    def _length(self) -> int:
        """Return the length of the contents modulo 2**32; for a gzipped file, from its last four bytes."""
        if self.path.suffix != ".gz":
            return self.path.stat().st_size % 2**32
        with self.path.open("rb") as stream:
            stream.seek(-4, 2)
            return int.from_bytes(stream.read(4), "little")

    def read(self) -> NDArray[np.uint8]:
        """Return the contents; UsageError if the file is damaged, truncated or longer than its header says."""
        found = 0
        try:
            array = np.empty(self.shape, np.uint8)
            memory = array.reshape(-1).data
            with self._stream() as stream:
                stream.seek(self._header)
                while block := stream.read(BYTES_PER_READ):
                    found += len(block)
                    if found > array.size:
                        break
                    memory[found - len(block) : found] = block
        except (MemoryError, ValueError):
            raise UsageError(f"{self.path}: header says shape {self.shape}, expected one that fits in memory") from None
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None
        if found != array.size:
            what = f"truncated: {found} bytes" if found < array.size else "more bytes"
            raise UsageError(f"{self.path}: {what}, expected {array.size} as its header says {self.shape}")
        return array

    def _unreadable(self, error: Exception) -> UsageError:
        if isinstance(error, EOFError):
            return UsageError(f"{self.path}: truncated: the gzip stream ends early, expected its end marker")
        if isinstance(error, (gzip.BadGzipFile, zlib.error)):
            return UsageError(f"{self.path}: not a valid gzip file ({error})")
        reason: Any = getattr(error, "strerror", None) or error
        return UsageError(f"{self.path}: can't be read: {reason}")


SHAPE = (32, 32, 3)
CLASSES = 10
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
