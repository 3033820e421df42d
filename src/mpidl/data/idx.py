"""Files of the MNIST family in the idx format (http://yann.lecun.com/exdb/mnist), gzipped or not.

An idx file of bytes consists of a magic number (0x0800 + the number of dimensions), the size of each dimension, all as
big-endian 32-bit integers, and the bytes in C order.
"""

from __future__ import annotations

import gzip
import math
import zlib
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

BYTES_MAGIC = 0x0800
BYTES_PER_READ = 1 << 18


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
