"""Ways to divide a value among the parts of a cut layer."""

from __future__ import annotations

from functools import cache
from itertools import product

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Box, Range, split

Shape = tuple[int, ...]

#: For each cut that divides a layer's outputs: the axes to divide, and the possible numbers of axes.
AXES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((0,), (2, 3)),
    "tiles": ((0, 1), (2, 3)),
    "channels": ((-1,), (3,)),
    "units": ((-1,), (1, 2)),
}


@cache
def divide(how: str, shape: Shape, parts: int) -> tuple[Box, ...]:
    """Divide an array of one sample into `parts` boxes, as equal as possible.

    Parameters
    ----------
    how
        ``"rows"``, ``"tiles"`` (rows and columns, with the shortest borders), ``"channels"`` (the last of three axes)
        or ``"units"`` (the last of one or two).
    shape
        Shape of the array.
    parts
        Number of boxes.

    Raises
    ------
    UsageError
        The array has no such axes, or there are more parts than indices along them.
    """
    axes, dimensions = AXES[how]
    if len(shape) not in dimensions:
        raise UsageError(f"outputs of shape {shape} have no {how}")
    extents = [shape[axis] for axis in axes]
    counts = [parts] if len(axes) == 1 else _tiles(extents[0], extents[1], parts)
    divided = [divided_by(how, extent, count) for extent, count in zip(extents, counts, strict=True)]
    boxes = []
    for ranges in product(*divided):
        whole = list(Box.whole(shape).ranges)
        for axis, each in zip(axes, ranges, strict=True):
            whole[axis] = each
        boxes.append(Box(tuple(whole)))
    return tuple(boxes)


def divided_by(what: str, extent: int, parts: int) -> list[Range]:
    """Return the ranges of `parts` parts of an axis; UsageError if there are more parts than indices."""
    if parts > extent:
        noun = what.removesuffix("s") if extent == 1 else what
        raise UsageError(f"{extent} {noun}, expected at least one for each of {parts} ranks")
    return split(extent, parts)


def _tiles(height: int, width: int, parts: int) -> tuple[int, int]:
    """Return the numbers of tiles, down and across, with the shortest inner borders."""
    fitting = [
        (down, parts // down)
        for down in range(min(height, parts), 0, -1)
        if parts % down == 0 and parts // down <= width
    ]
    if not fitting:
        raise UsageError(f"{height} x {width} pixels can't be divided into {parts} tiles, one for each rank")
    return min(fitting, key=lambda tiles: (tiles[0] - 1) * width + (tiles[1] - 1) * height)
