"""What the layers that pool images have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpidl.nn.layers.layer import Layer, Shape
from mpidl.nn.windows import PaddingPair, Pair, Windows, windows


@dataclass(frozen=True)
class Pooling2d(Layer):
    """One value for each window and channel of images (height, width, channels) or (height, width).

    The windows that don't fit are left out: floor((extent + 2 padding - size) / stride) + 1 of them lie along each
    direction.

    Attributes
    ----------
    size
        Of the windows: a number, or [vertical, horizontal].
    stride
        Between positions; the size if not given.
    padding
        Pixels around the image, less than the size: a number, or [vertical, horizontal], "same" or "valid" (none).
    """

    size: Pair = 2
    stride: Pair | None = None
    padding: PaddingPair = 0

    def windows(self, input_shape: Shape) -> Windows:
        """Return how the windows lie on images of this shape."""
        return windows(input_shape, self.size, self.size if self.stride is None else self.stride, self.padding)

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return (*self.windows(input_shape).positions, *input_shape[2:])


def as_images(array: Any) -> Any:
    """Return a view (n, height, width, channels) of images that may lack the last axis."""
    return array.reshape(*array.shape[:3], -1)
