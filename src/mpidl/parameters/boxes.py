"""Rectangular boxes that cover a range of a C-ordered array."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mpidl.parameters.ranges import Range


def boxes(shape: Sequence[int], start: int, stop: int) -> list[tuple[tuple[slice, ...], Range]]:
    """Divide elements [start, stop) of a C-ordered array into the fewest boxes, in order.

    A shard is a range of the flat vector, but an HDF5 virtual dataset maps boxes.

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

    Raises
    ------
    ValueError
        If the range isn't within the array.

    Examples
    --------
    >>> boxes((3, 4), 2, 9)
    [((slice(0, 1, None), slice(2, 4, None)), Range(start=0, stop=2)), \
((slice(1, 2, None), slice(0, 4, None)), Range(start=2, stop=6)), \
((slice(2, 3, None), slice(0, 1, None)), Range(start=6, stop=7))]
    """
    if not 0 <= start <= stop <= prod(shape):
        raise ValueError(f"elements {start} to {stop} aren't within an array of shape {tuple(shape)}")
    found = []
    position = start
    while position < stop:
        box, size = _largest(shape, position, stop)
        found.append((box, Range(position, position + size).shift(-start)))
        position += size
    return found


def _largest(shape: Sequence[int], position: int, stop: int) -> tuple[tuple[slice, ...], int]:
    """Return the largest box that begins at `position` and ends by `stop`, and its size."""
    box: list[slice] = []
    stride = prod(shape)
    for axis, extent in enumerate(shape):
        stride //= extent
        index = position // stride % extent
        if position % stride == 0 and position + stride <= stop:
            count = min((stop - position) // stride, extent - index)
            whole = [slice(0, inner) for inner in shape[axis + 1 :]]
            return (*box, slice(index, index + count), *whole), count * stride
        box.append(slice(index, index + 1))
    return (), 1
