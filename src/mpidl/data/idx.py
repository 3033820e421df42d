"""Files of the MNIST family: idx, as http://yann.lecun.com/exdb/mnist describes it, gzipped or not.

An idx file of bytes holds a magic number (0x0800 + the number of dimensions), the size of each dimension, all
big-endian 32 bits, and the bytes in C order.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.dataset import ArraySplit, Column, Dataset, check
from mpidl.errors import UsageError

BYTES_MAGIC = 0x0800


@dataclass(frozen=True)
class Idx:
    """The four files of MNIST, Fashion-MNIST or another of their family.

    Labels are read and checked when it is opened; images, whose headers are checked then, are read by the first
    `gather` or `load`.

    Attributes
    ----------
    path : str
        The directory with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
        t10k-labels-idx1-ubyte, each as it is or with .gz.
    classes : int
        Labels are in [0, classes).
    """

    name: ClassVar[str] = "idx"
    path: str
    classes: Annotated[int, msgspec.Meta(ge=1)] = 10

    def open(self) -> Dataset:
        directory = Path(self.path).expanduser()
        if not directory.is_dir():
            found = "not a directory" if directory.exists() else "no such directory"
            raise UsageError(f"data.path: {self.path}: {found}, expected one with the four idx files")
        (train_images, train_labels), (test_images, test_labels) = (
            (IdxFile(find(directory, f"{part}-images-idx3-ubyte"), 3),
             IdxFile(find(directory, f"{part}-labels-idx1-ubyte"), 1))
            for part in ("train", "t10k")
        )  # fmt: skip
        train = Column(str(train_labels.path), train_labels.read())
        test = Column(str(test_labels.path), test_labels.read())
        input_shape, classes = check(
            (Column(str(train_images.path), train_images), train),
            (Column(str(test_images.path), test_images), test),
            self.classes,
        )
        return Dataset(
            self.name,
            input_shape,
            classes,
            ArraySplit(train_images.read, train.values),
            ArraySplit(test_images.read, test.values),
        )


def find(directory: Path, name: str) -> Path:
    """Return the path of file `name` or `name`.gz in `directory`."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"data.path: {directory} has neither {name} nor {name}.gz")


class IdxFile:
    """An idx file of bytes whose header has been read and checked.

    Parameters
    ----------
    path : Path
        Gzipped if it ends in .gz.
    dimensions : int
        How many it must have.

    Attributes
    ----------
    shape : tuple of int
    dtype : uint8

    Raises
    ------
    UsageError
        Not such a file, or (where this can be told from the header and the file's end) not of the size it says.
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
            # Says what is wrong, or finds a sound file whose length its end doesn't tell.
            self.read()

    def _stream(self) -> BinaryIO:
        return gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb")  # type: ignore[return-value]

    def _length(self) -> int:
        """Return the length of the contents modulo 2**32; of a gzipped file, as its last four bytes say."""
        if self.path.suffix != ".gz":
            return self.path.stat().st_size % 2**32
        with self.path.open("rb") as stream:
            stream.seek(-4, 2)
            return int.from_bytes(stream.read(4), "little")

    def read(self) -> NDArray[np.uint8]:
        """Return the contents.

        Raises
        ------
        UsageError
            Damaged, truncated or longer than the header says.
        """
        array = np.empty(self.shape, np.uint8)
        try:
            with self._stream() as stream:
                stream.seek(self._header)
                found = stream.readinto(array.reshape(-1).data)  # type: ignore[attr-defined]
                longer = stream.read(1) != b""
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from None
        if found < array.size or longer:
            what = "is longer" if longer else f"truncated: {found} bytes of data"
            raise UsageError(f"{self.path}: {what}, expected {array.size} for the shape {self.shape} of its header")
        return array

    def _unreadable(self, error: Exception) -> UsageError:
        if isinstance(error, EOFError):
            return UsageError(f"{self.path}: truncated: the gzip stream ends early, expected its end marker")
        if isinstance(error, (gzip.BadGzipFile, zlib.error)):
            return UsageError(f"{self.path}: not a sound gzip file ({error})")
        reason: Any = getattr(error, "strerror", None) or error
        return UsageError(f"{self.path}: can't be read: {reason}")
