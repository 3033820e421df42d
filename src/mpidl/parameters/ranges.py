"""Ranges of elements of a flat vector, and rectangular boxes of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
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


class Box(NamedTuple):
    """The elements of an array whose index along each axis lies in a range.

    Attributes
    ----------
    ranges : tuple of Range
        One for each axis.

    Examples
    --------
    >>> box = Box((Range(2, 5), Range(0, 4)))
    >>> box.shape, box.size
    ((3, 4), 12)
    >>> box.slices(Box((Range(1, 9), Range(0, 4))))
    (slice(1, 4, None), slice(0, 4, None))
    """

    ranges: tuple[Range, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box of a whole array."""
        return cls(tuple(Range(0, extent) for extent in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of indices along each axis."""
        return tuple(each.size for each in self.ranges)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """Return the elements common to both boxes, or None if there are none."""
        common = [own.intersect(its) for own, its in zip(self.ranges, other.ranges, strict=True)]
        return None if None in common else Box(tuple(each for each in common if each is not None))

    def minus(self, other: Box) -> list[Box]:
        """Return the elements of this box that aren't in another one, as disjoint boxes."""
        common = self.intersect(other)
        if common is None:
            return [self]
        found, rest = [], list(self.ranges)
        for axis, (own, its) in enumerate(zip(self.ranges, common.ranges, strict=True)):
            for part in (Range(own.start, its.start), Range(its.stop, own.stop)):
                if part.size:
                    found.append(Box((*rest[:axis], part, *rest[axis + 1 :])))
            rest[axis] = its
        return found

    def slices(self, of: Box) -> tuple[slice, ...]:
        """Return the slices that select this box from an array that holds the box `of`."""
        return tuple(slice(*own.shift(-its.start)) for own, its in zip(self.ranges, of.ranges, strict=True))

    def offset(self, of: Box) -> int:
        """Return the index of its first element in the flattened array that holds the box `of`."""
        starts = zip(self.ranges, of.ranges, strides(of.shape), strict=True)
        return sum((own.start - its.start) * stride for own, its, stride in starts)

    def placed(self, within: Box) -> Box:
        """Return a box of the array that holds the box `within`, as one of the whole array."""
        return Box(tuple(own.shift(its.start) for own, its in zip(self.ranges, within.ranges, strict=True)))


def merged(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return the fewest axes that visit the same elements in the same order.

    Parameters
    ----------
    shape, strides
        Extent of each axis, and the distance of neighbours along it, in elements.

    Returns
    -------
    list of (int, int)
        Extent and stride of each axis. The last one has stride 1, for contiguous elements.

    Examples
    --------
    >>> merged((2, 3, 5, 4), (240, 40, 4, 1))
    [(2, 240), (3, 40), (20, 1)]
    """
    axes = [(1, 1)]
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        inner, distance = axes[0]
        if stride == inner * distance:
            axes[0] = (extent * inner, distance)
        elif extent != 1:
            axes.insert(0, (extent, stride))
    return axes


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance, in elements, of neighbours along each axis of a C-ordered array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def boxes(shape: Sequence[int], start: int, stop: int) -> list[tuple[Box, Range]]:
    """Divide elements [start, stop) of a C-ordered array into the fewest boxes, in order.

    Raise ValueError if the range isn't within the array.

    Parameters
    ----------
    shape
        Shape of the array; ``()`` is a single element.
    start, stop
        The range, in elements of the flattened array.

    Returns
    -------
    list
        At most ``2 * ndim - 1`` boxes (one for ``()``), each with the range that it covers, relative to `start`.

    Examples
    --------
    >>> [(box.shape, part) for box, part in boxes((3, 4), 2, 9)]
    [((1, 2), Range(start=0, stop=2)), ((1, 4), Range(start=2, stop=6)), ((1, 1), Range(start=6, stop=7))]
    """
    if not 0 <= start <= stop <= prod(shape):
        raise ValueError(f"elements {start} to {stop} aren't within an array of shape {tuple(shape)}")
    found = []
    position = start
    while position < stop:
        box = _largest(shape, position, stop)
        found.append((box, Range(position, position + box.size).shift(-start)))
        position += box.size
    return found


def _largest(shape: Sequence[int], position: int, stop: int) -> Box:
    """Return the largest box that begins at `position` and ends by `stop`."""
    ranges: list[Range] = []
    stride = prod(shape)
    for axis, extent in enumerate(shape):
        stride //= extent
        index = position // stride % extent
        if position % stride == 0 and position + stride <= stop:
            count = min((stop - position) // stride, extent - index)
            return Box((*ranges, Range(index, index + count), *(Range(0, inner) for inner in shape[axis + 1 :])))
        ranges.append(Range(index, index + 1))
    return Box(())
