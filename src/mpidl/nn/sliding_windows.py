"""Windows that slide over images: their size, stride and padding."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from mpidl.errors import UsageError, quoted
from mpidl.parameters.ranges import Range
from mpidl.schema import Count, Natural

Shape = tuple[int, ...]

#: The value of a configuration key: one number for both directions, or [vertical, horizontal].
Pair = Count | Annotated[list[Count], Meta(min_length=2, max_length=2)]
#: One number for all sides, or [vertical, horizontal], each one number for both sides or [before, after].
Sides = Natural | Annotated[list[Natural], Meta(min_length=2, max_length=2)]
PaddingPair = Natural | Annotated[list[Sides], Meta(min_length=2, max_length=2)] | Literal["same", "valid"]


class SlidingWindows(NamedTuple):
    """The windows on images of one shape; all pairs are (vertical, horizontal).

    Attributes
    ----------
    size : (int, int)
        Pixels of a window.
    stride : (int, int)
        Pixels between neighbouring windows.
    padding : (int, int)
        Zeros added above and to the left.
    positions : (int, int)
        Number of windows.
    channels : int
        Channels of the images.
    after : (int, int)
        Zeros added below and to the right.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    positions: tuple[int, int]
    channels: int
    after: tuple[int, int]

    def on_rows(self, rows: Range, height: int) -> Range:
        """Return the rows of positions whose windows are within some rows of an image of this height.

        Examples
        --------
        >>> sliding_windows((9, 5), 3, 1, 1).on_rows(Range(0, 6), 9)
        Range(start=0, stop=5)
        """
        size, stride, padding, positions = self.size[0], self.stride[0], self.padding[0], self.positions[0]
        start = 0 if rows.start == 0 else -(-(rows.start + padding) // stride)
        stop = positions if rows.stop == height else (rows.stop + padding - size) // stride + 1
        return Range(start, max(start, stop))


def sliding_windows(input_shape: Shape, size: Pair, stride: Pair, padding: PaddingPair) -> SlidingWindows:
    """Return the windows on images (height, width, channels) or (height, width), which have one channel.

    ``"valid"`` means no padding. ``"same"`` means equal padding on both sides that gives ceil(extent / stride)
    positions; it takes odd sizes.

    Raises
    ------
    UsageError
        The inputs aren't images, or are smaller than a window.
    """
    if len(input_shape) not in (2, 3):
        raise UsageError(f"inputs of shape {quoted(input_shape)}, expected (height, width[, channels])")
    height, width = input_shape[:2]
    sizes, strides = _pair(size), _pair(stride)
    if padding == "same":
        if not all(each % 2 for each in sizes):
            raise UsageError(f"padding: 'same' takes odd sizes, found {list(sizes)}")
        sides = [(each // 2, each // 2) for each in sizes]
    else:
        sides = [(0, 0), (0, 0)] if padding == "valid" else _sides(padding)
    for name, extent, each, pads in zip(("height", "width"), (height, width), sizes, sides, strict=True):
        if each > extent + sum(pads):
            pad = pads[0] if pads[0] == pads[1] else list(pads)
            raise UsageError(f"size: {each}, larger than the inputs' {name}, {extent}, and padding {pad}")
        if max(pads) >= each:
            raise UsageError(f"padding: {max(pads)}, expected less than the size ({each})")
    down, across = (
        (extent + sum(pads) - each) // step + 1
        for extent, each, step, pads in zip((height, width), sizes, strides, sides, strict=True)
    )
    (top, bottom), (left, right) = sides
    channels = input_shape[2] if len(input_shape) == 3 else 1
    return SlidingWindows(sizes, strides, (top, left), (down, across), channels, (bottom, right))


def under_windows(
    windows: SlidingWindows, input_shape: Shape, positions: tuple[Range, Range]
) -> tuple[tuple[Range, Range], list[Sides]]:
    """Return the rows and columns of an image under the windows at some positions, and the padding around these."""
    ranges: list[Range] = []
    padding: list[Sides] = []
    for axis, some in enumerate(positions):
        start = some.start * windows.stride[axis] - windows.padding[axis]
        stop = (some.stop - 1) * windows.stride[axis] - windows.padding[axis] + windows.size[axis]
        inside = Range(max(0, start), min(input_shape[axis], stop))
        ranges.append(inside)
        padding.append([inside.start - start, stop - inside.stop])
    return (ranges[0], ranges[1]), padding


def _sides(padding: PaddingPair) -> list[tuple[int, int]]:
    """Return the padding (before, after) of each axis."""
    assert not isinstance(padding, str)
    return [_pair(each) for each in ((padding, padding) if isinstance(padding, int) else padding)]


def _pair(value: Pair | Sides) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    down, across = value
    return down, across
