"""The division of the flat parameter vector into fragments, which replicas exchange one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range, split


def fragments(layout: Layout, whole: Range, count: int) -> list[Range]:
    """Return consecutive fragments of about equal size: of whole layers or, if these are too few, of whole tensors.

    If the tensors are too few as well, fragments have the same number of elements each.

    Parameters
    ----------
    layout
        Layout of the vector.
    whole
        What is divided: the vector, or the slice of it that a rank has.
    count
        Number of fragments, at least one.

    Returns
    -------
    list of Range
        Counted from the beginning of `whole`.
    """
    pieces = [piece for piece in layout if piece.range.intersect(whole)]
    for key in (_layer, _tensor):
        starts = [max(next(group).start, whole.start) - whole.start for _, group in groupby(pieces, key)]
        if len(starts) >= count:
            return [Range(*pair) for pair in pairwise(_nearest(starts, whole.size, count))]
    return split(whole.size, count)


def _layer(piece: Slice) -> str:
    return piece.name.rpartition("/")[0]


def _tensor(piece: Slice) -> str:
    return piece.name


def _nearest(starts: Sequence[int], size: int, count: int) -> list[int]:
    """Return the bounds of fragments that begin at some of `starts`, as near to equal sizes as each can be."""
    bounds, first = [0], 1
    for number in range(1, count):
        # The fragments that follow need starts, too.
        last = len(starts) - (count - number)
        nearest = min(range(first, last + 1), key=lambda place: abs(starts[place] * count - number * size))
        bounds.append(starts[nearest])
        first = nearest + 1
    return [*bounds, size]
