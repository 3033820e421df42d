"""Windows that slide over images: their size, stride and padding."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from mpidl.errors import UsageError

Shape = tuple[int, ...]

Count = Annotated[int, Meta(ge=1)]
Padding = Annotated[int, Meta(ge=0)]
#: The value of a configuration key: one number for both directions, or [vertical, horizontal].
Pair = Count | Annotated[list[Count], Meta(min_length=2, max_length=2)]
PaddingPair = Padding | Annotated[list[Padding], Meta(min_length=2, max_length=2)] | Literal["same", "valid"]


class SlidingWindows(NamedTuple):
    """The windows on images of one shape; all pairs are (vertical, horizontal).

    Attributes
    ----------
    size : (int, int)
        Pixels of a window.
    stride : (int, int)
        Pixels between neighbouring windows.
    padding : (int, int)
        Zeros added on each side.
    positions : (int, int)
        Number of windows.
    channels : int
        Channels of the images.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    positions: tuple[int, int]
    channels: int


def sliding_windows(input_shape: Shape, size: Pair, stride: Pair, padding: PaddingPair) -> SlidingWindows:
    """Return the windows on images (height, width, channels) or (height, width), which have one channel.

    ``"valid"`` means no padding. ``"same"`` means equal padding on both sides that gives ceil(extent / stride)
    positions; it takes odd sizes.

    Raises
    ------
    UsageError
        If the inputs aren't images, or are smaller than a window.
    """
    if len(input_shape) not in (2, 3):
        raise UsageError(f"inputs of shape {input_shape}, expected (height, width, channels) or (height, width)")
    height, width = input_shape[:2]
    sizes, strides = _pair(size), _pair(stride)
    if padding == "same":
        if not all(each % 2 for each in sizes):
            raise UsageError(f"padding: 'same' takes odd sizes, found {list(sizes)}")
        pads = sizes[0] // 2, sizes[1] // 2
    else:
        pads = (0, 0) if padding == "valid" else _pair(padding)
    for name, extent, each, pad in zip(("height", "width"), (height, width), sizes, pads, strict=True):
        if each > extent + 2 * pad:
            raise UsageError(f"size: {each}, larger than the inputs' {name}, {extent}, and padding {pad}")
        if pad >= each:
            raise UsageError(f"padding: {pad}, expected less than the size ({each})")
    down, across = (
        (extent + 2 * pad - each) // step + 1
        for extent, each, step, pad in zip((height, width), sizes, strides, pads, strict=True)
    )
    channels = input_shape[2] if len(input_shape) == 3 else 1
    return SlidingWindows(sizes, strides, pads, (down, across), channels)


def _pair(value: int | list[int] | str) -> tuple[int, int]:
    assert not isinstance(value, str)
    if isinstance(value, int):
        return value, value
    down, across = value
    return down, across
