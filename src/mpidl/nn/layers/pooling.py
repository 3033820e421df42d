"""Pooling: one output for each window and channel of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.nn.sliding_windows import PaddingPair, Pair, SlidingWindows, sliding_windows, under_windows
from mpidl.parameters.ranges import Box


@dataclass(frozen=True)
class Pooling2d(Layer):
    """One output for each window and channel of images (height, width, channels) or (height, width).

    Along each direction there are floor((extent + padding on both sides - size) / stride) + 1 windows, all within the
    padding.

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
    """Return a view (n, height, width, channels) of images, with or without a last axis."""
    return array.reshape(*array.shape[:3], -1)


class SumPool2d(Pooling2d):
    """A pooling by a sum over each window.

    Attributes
    ----------
    squares
        Whether it is the square root of the sum of squares, rather than the mean.
    """

    squares: ClassVar[bool]

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        work.kernels.pool(as_images(inputs), as_images(outputs), self.windows(inputs.shape[1:]), self.squares)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is not None:
            arrays = map(as_images, (inputs, outputs, output_gradient, input_gradient))
            work.kernels.backprop_pool(*arrays, self.windows(inputs.shape[1:]), self.squares)


@dataclass(frozen=True)
class AveragePool2d(SumPool2d):
    """The mean over each window, including the zeros of the padding (PyTorch's default)."""

    type: ClassVar[str] = "average_pool2d"
    squares: ClassVar[bool] = False


@dataclass(frozen=True)
class L2Pool2d(SumPool2d):
    """The square root of the sum of squares over each window (Le et al. 2012, section 3.2; DistBelief's image model).

    The root has no derivative at zero: a window of zeros has no gradient.
    """

    type: ClassVar[str] = "l2_pool2d"
    squares: ClassVar[bool] = True


@dataclass(frozen=True)
class MaxPool2d(Pooling2d):
    """The maximum over each window, without the padding.

    If several pixels are equal, the first one in row-major order gets the gradient.
    """

    type: ClassVar[str] = "max_pool2d"

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        windows = self.windows(input_shape)
        return {"winners": Buffer((*windows.positions, windows.channels), "int32")}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        windows = self.windows(inputs.shape[1:])
        work.kernels.max_pool(as_images(inputs), as_images(outputs), work.buffers["winners"], windows)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is not None:
            winners = work.buffers["winners"]
            work.kernels.backprop_max_pool(winners, as_images(output_gradient), as_images(input_gradient))
