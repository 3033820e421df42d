"""The base class of pooling layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Shape
from mpidl.nn.sliding_windows import PaddingPair, Pair, SlidingWindows, sliding_windows, under_windows
from mpidl.parameters.box import Box


@dataclass(frozen=True)
class Pooling2d(Layer):
    """One output for each window and channel of images (height, width, channels) or (height, width).

    There are floor((extent + padding on both sides - size) / stride) + 1 windows along each direction: none extends
    beyond the padding.

    Attributes
    ----------
    size
        Size of a window: a number, or [vertical, horizontal].
    stride
        Pixels between neighbouring windows; the size by default.
    padding
        Pixels around the image, less than the size: a number, [vertical, horizontal], [[top, bottom], [left, right]],
        "same" or "valid" (none).
    """

    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels")

    size: Pair = 2
    stride: Pair | None = None
    padding: PaddingPair = 0

    def windows(self, input_shape: Shape) -> SlidingWindows:
        """Return the windows on images of this shape."""
        return sliding_windows(input_shape, self.size, self.size if self.stride is None else self.stride, self.padding)

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*self.windows(input_shape).positions, *input_shape[2:])

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        (shape,) = input_shapes
        down, across, *channels = box.ranges
        inside, padding = under_windows(self.windows(shape), shape, (down, across))
        return Piece(replace(self, padding=padding), (Box((*inside, *channels)),), box, {})


def as_images(array: Any) -> Any:
    """Return a view (n, height, width, channels) of images that may lack the last axis."""
    return array.reshape(*array.shape[:3], -1)
