"""Data that need no files: handwritten digits, and synthetic samples of any number and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, outside
from mpidl.data.dataset import ArraySplit, Dataset, Split
from mpidl.data.hdf5_files import open_columns
from mpidl.schema import Checked, Count, Natural, NonNegative

FILE = Path(__file__).with_name("digits.h5")


@dataclass(frozen=True)
class Digits:
    """Handwritten digits: inputs (8, 8), 10 classes, 1437 training and 360 test samples."""

    name: ClassVar[str] = "digits"

    def open(self) -> Dataset:
        arrays = {key: column.values[()] for key, column in open_columns([FILE]).items()}
        train, test = (ArraySplit(arrays[f"{part}/x"], arrays[f"{part}/y"]) for part in ("train", "test"))
        return Dataset(self.name, (8, 8), 10, train, test)


NOISE_ELEMENTS = 1 << 20
LEAST_NOISE_ROWS = 256
HASH = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Knuth, TAOCP 3, 6.4, multiplicative hashing


@dataclass(frozen=True)
class SeededSource(Checked):
    """Data that depend on a seed."""

    seed: Natural = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Synthetic(SeededSource):
    """Classes with normally distributed means; each sample is its class's mean plus noise.

    The label of sample i is i modulo `classes`. Samples are sums of rows of a table of normal numbers, so that many
    classes need little memory. The mean of class c is the sum of two rows out of 2q, for c // q and c mod q, where q is
    sqrt(classes) rounded up. The noise is one of at least 256 further rows, chosen by a hash of i.

    Attributes
    ----------
    samples, test_samples : int
        Numbers of training and of test samples, which are distinct.
    shape : tuple of int
        Shape of a sample's inputs, which are float32.
    classes : int
        Number of classes.
    noise : float
        Standard deviation of the noise. That of the means is 1.
    seed : int
        Seed of the table.
    """

    name: ClassVar[str] = "synthetic"
    samples: Count = 10_000
    test_samples: Count = 1_000
    shape: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)] = (64,)
    classes: Count = 10
    noise: NonNegative = 1.0

    def open(self) -> Dataset:
        table = SampleTable(self)
        train = SyntheticSplit(table, 0, self.samples)
        test = SyntheticSplit(table, self.samples, self.test_samples)
        return Dataset(self.name, self.shape, self.classes, train, test)


class SampleTable:
    """The rows (2q + noises, size of a sample) of normal numbers whose sums are the samples.

    With the q of `Synthetic`, rows 0 to q - 1 are for c // q, rows q to 2q - 1 for c mod q, and the others noise.
    """

    def __init__(self, source: Synthetic) -> None:
        self.source = source
        self.codes = math.isqrt(source.classes - 1) + 1
        self.noises = max(LEAST_NOISE_ROWS, NOISE_ELEMENTS // math.prod(source.shape))

    @cached_property
    def rows(self) -> NDArray[np.float32]:
        random = np.random.default_rng(self.source.seed)
        size = math.prod(self.source.shape)
        rows = random.standard_normal((2 * self.codes + self.noises, size), dtype=np.float32)
        rows[: 2 * self.codes] *= np.float32(math.sqrt(0.5))
        rows[2 * self.codes :] *= np.float32(self.source.noise)
        return rows


class SyntheticSplit(Split):
    """Samples `first` to `first` + `samples` - 1 of a table."""

    by_parts = True

    def __init__(self, table: SampleTable, first: int, samples: int) -> None:
        self.samples, self._table, self._first = samples, table, first
        self._buffers: dict[int, NDArray[np.float32]] = {}

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        if indices.min() < 0 or indices.max() >= self.samples:
            raise outside(indices, 0, self.samples)
        table, rows, n = self._table, self._table.rows, len(indices)
        if n not in self._buffers:
            self._buffers[n] = np.empty((2, n, rows.shape[1]), np.float32)
        total, term = self._buffers[n]
        row = indices + self._first
        labels = row % table.source.classes
        hashes = row.view(np.uint64)  # in the memory of `row`
        hashes *= HASH
        hashes >>= np.uint64(32)
        hashes %= np.uint64(table.noises)
        row += 2 * table.codes
        np.take(rows, row, axis=0, out=total, mode="clip")
        np.floor_divide(labels, table.codes, out=row)
        total += np.take(rows, row, axis=0, out=term, mode="clip")
        np.remainder(labels, table.codes, out=row)
        row += table.codes
        total += np.take(rows, row, axis=0, out=term, mode="clip")
        return Batch(total.reshape(n, *table.source.shape), labels)

    def labels(self, start: int, stop: int) -> NDArray[np.integer]:
        return np.arange(self._first + start, self._first + stop) % self._table.source.classes

    def load(self) -> None:
        _ = self._table.rows

    def copy(self) -> SyntheticSplit:
        return SyntheticSplit(self._table, self._first, self.samples)
