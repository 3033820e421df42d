"""Ranges of elements of a flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Range(NamedTuple):
    """The elements from `start` up to, but not including, `stop` of a flat vector."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def intersect(self, other: Range) -> Range | None:
        """Return the elements common to both ranges, or None if there are none."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return Range(start, stop) if start < stop else None

    def shift(self, by: int) -> Range:
        """Return the range moved by `by` elements."""
        return Range(self.start + by, self.stop + by)


def split(size: int, parts: int) -> list[Range]:
    """Divide `size` elements into `parts` consecutive ranges whose sizes differ by at most one, larger ones first.

    Raises
    ------
    ValueError
        `size` is negative or `parts` is less than one.
    """
    if size < 0 or parts < 1:
        raise ValueError(f"can't split {size} elements into {parts} parts")
    return [share(size, number, parts) for number in range(parts)]


def share(size: int, number: int, parts: int) -> Range:
    """Return part `number` of `split`, without the others."""
    each, larger = divmod(size, parts)
    start = number * each + min(number, larger)
    return Range(start, start + each + (number < larger))


def chunks(whole: Range, chunk: int) -> list[Range]:
    """Divide a range into consecutive pieces of `chunk` elements; the last may be shorter.

    Raises
    ------
    ValueError
        `chunk` is less than one.
    """
    if chunk < 1:
        raise ValueError(f"a chunk of {chunk} elements, expected at least 1")
    return [Range(start, min(start + chunk, whole.stop)) for start in range(whole.start, whole.stop, chunk)]


def within(ranges: Sequence[Range], whole: Range) -> list[Range]:
    """Return the intersections of ranges with another, relative to its start."""
    return [shared.shift(-whole.start) for each in ranges if (shared := each.intersect(whole))]
