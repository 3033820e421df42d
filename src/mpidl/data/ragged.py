"""Bags of ids of varying length: the ids of all bags one after another, and where each bag begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mpidl.errors import UsageError

#: Offsets that are checked at a time.
BLOCK = 1 << 20
INT64 = np.dtype(np.int64)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Bags of ids of varying length, such as the inputs of a batch: bag i is ``values[offsets[i]:offsets[i + 1]]``.

    Its length is the number of bags, its shape that of an array (bags,), and a slice of it has the bags of the slice.

    Parameters
    ----------
    values : array (ids,) of integers
        The ids of all bags; int64 as an attribute.
    offsets : array (bags + 1,) of integers
        Ascending from 0 to the number of ids; int64 as an attribute. Equal neighbours are an empty bag.

    Raises
    ------
    UsageError
        The values or offsets aren't such arrays.

    Examples
    --------
    >>> bags = Ragged.of([[7, 1], [], [4]])
    >>> bags.values, bags.offsets
    (array([7, 1, 4]), array([0, 2, 2, 3]))
    """

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("values", "offsets"):
            object.__setattr__(self, name, whole_numbers(f"Ragged.{name}", getattr(self, name)))
        check_offsets("Ragged.offsets", self.offsets, len(self.values))

    @classmethod
    def of(cls, bags: Iterable[ArrayLike]) -> Ragged:
        """Return bags, each an array (ids,) of integers; UsageError if one isn't."""
        arrays = [whole_numbers(f"bag {number}", bag) for number, bag in enumerate(bags)]
        return cls(np.concatenate([_NONE, *arrays]), np.cumsum([0, *map(len, arrays)]))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the bags of several parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        lengths = [np.diff(part.offsets) for part in parts]
        return cls(
            np.concatenate([_NONE, *(part.values for part in parts)]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[np.int64]:
        return INT64

    def __getitem__(self, bags: slice) -> Ragged:
        start, stop, step = bags.indices(len(self))
        if step != 1:
            return self.take(np.arange(start, stop, step))
        offsets = self.offsets[start : max(start, stop) + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, indices: NDArray[np.int64]) -> Ragged:
        """Return the bags with these indices (n,), each in [0, bags), in their order."""
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.repeat(starts - offsets[:-1], lengths)
        places += np.arange(len(places))
        return Ragged(self.values[places], offsets)


_NONE = np.empty(0, np.int64)


class StoredBags:
    """Bags of one or several files, whose samples follow one another, read as they are needed.

    Attributes
    ----------
    shape : (int,)
        Number of bags.
    dtype : numpy.dtype
        Of the ids, as they are stored.
    """

    chunks = None

    def __init__(self, parts: Sequence[BagsOfFile]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(part.offsets.shape[0] - 1 for part in parts)])
        self.shape, self.dtype = (int(self._starts[-1]),), parts[0].values.dtype

    def __getitem__(self, samples: slice | NDArray[np.int64]) -> Ragged:
        """Return the bags of a slice, or of sorted indices."""
        if isinstance(samples, slice):
            start, stop, _ = samples.indices(self.shape[0])
            firsts = self._starts[:-1].tolist()
            own = (part.read(start - first, stop - first) for part, first in zip(self._parts, firsts, strict=True))
            return Ragged.joined([each for each in own if each is not None])
        runs = np.split(samples, np.flatnonzero(np.diff(samples) != 1) + 1)
        return Ragged.joined([self[int(run[0]) : int(run[-1]) + 1] for run in runs])


class BagsOfFile(NamedTuple):
    """The ids of all bags of a file, their name in messages, and their offsets."""

    name: str
    values: Any
    offsets: Any

    def read(self, start: int, stop: int) -> Ragged | None:
        """Return the bags of the file in [start, stop); None if there are none."""
        start, stop = max(start, 0), min(stop, self.offsets.shape[0] - 1)
        if start >= stop:
            return None
        offsets = np.asarray(self.offsets[start : stop + 1], np.int64)
        values = self.values[int(offsets[0]) : int(offsets[-1])]
        return Ragged(whole_numbers(self.name, values), offsets - offsets[0])

    def check(self, name_of_offsets: str) -> BagsOfFile:
        """Return the bags; UsageError unless the ids are integers, and the offsets fit them."""
        check_whole(self.name, self.values.shape, self.values.dtype)
        check_whole(name_of_offsets, self.offsets.shape, self.offsets.dtype)
        check_offsets(name_of_offsets, self.offsets, self.values.shape[0])
        return self


def whole_numbers(name: str, values: Any) -> NDArray[np.int64]:
    """Return values (n,) as int64; UsageError, with their name, if they aren't whole numbers of this range."""
    array = np.asarray(values)
    if array.dtype.kind in "fO" and not isinstance(values, np.ndarray):
        # NumPy has no integers for some of Python's.
        found = [each for each in values if isinstance(each, int) and not -(2**63) <= each < 2**63]
        if found:
            raise UsageError(f"{name}: {found[0]}, expected -2**63 to 2**63 - 1 (int64)")
    check_whole(name, array.shape, array.dtype if array.size else INT64)
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise UsageError(f"{name}: {array.max()}, expected at most {np.iinfo(np.int64).max} (int64)")
    return np.ascontiguousarray(array, np.int64)


def check_whole(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Raise UsageError, with a name, unless an array of this shape and dtype has whole numbers in a row."""
    if len(shape) != 1 or np.dtype(dtype).kind not in "iu":
        raise UsageError(f"{name}: {dtype} of shape {shape}, expected integers of shape (n,)")


def check_offsets(name: str, offsets: Any, ids: int) -> None:
    """Raise UsageError unless offsets, an array or a dataset of integers, ascend from 0 to the number of ids."""
    last, ends = 0, offsets.shape[0]
    if not ends:
        raise UsageError(f"{name}: none, expected one for each bag and the end of the last one")
    for start in range(0, ends, BLOCK):
        block = np.asarray(offsets[start : start + BLOCK], np.int64)
        if not start and block[0]:
            raise UsageError(f"{name}: the first is {block[0]}, expected 0")
        falls = np.flatnonzero(np.diff(block, prepend=last) < 0)
        if falls.size:
            place = int(falls[0])
            before = block[place - 1] if place else last
            raise UsageError(f"{name}: {block[place]} at index {start + place} after {before}, expected ascending ones")
        last = int(block[-1])
    if last != ids:
        raise UsageError(f"{name}: the last is {last}, expected {ids}, the number of ids")
