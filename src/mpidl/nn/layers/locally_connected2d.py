"""Locally connected layer: convolution without shared weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np

from mpidl.nn.layers.conv2d import MOST_IMAGES_ON_DEVICE, PATCHES, PATCHES_ON_DEVICE, Convolution
from mpidl.nn.layers.layer import Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.nn.sliding_windows import SlidingWindows, under_windows
from mpidl.parameters.ranges import Box, Range


@dataclass(frozen=True)
class LocallyConnected2d(Convolution):
    """A convolution with separate weights for every position (Dean et al. 2012, section 5; Le et al. 2012).

    Attributes
    ----------
    initialiser
        A name in `INITIALISERS`, used for the weight; the bias starts at zero. The weight is (positions down, positions
        across, size, size, input channels, channels), the bias (positions down, positions across, channels).
    """

    type: ClassVar[str] = "locally_connected2d"

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        windows = self.windows(input_shape)
        return {
            "weight": (*windows.positions, *windows.size, windows.channels, self.channels),
            "bias": (*windows.positions, self.channels),
        }

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, values: np.ndarray) -> None:
        super().initial(parameter, shape, generator, values)
        # Initialisers include the axes of positions in the fans, as if they were part of the window.
        values *= sqrt(prod(shape[:2]))

    def operations(self, *input_shapes: Shape) -> int:
        (input_shape,) = input_shapes
        return 2 * prod(self.parameters(input_shape)["weight"])

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        (shape,) = input_shapes
        windows, (down, across, channels) = self.windows(shape), box.ranges
        inside, padding = under_windows(windows, shape, (down, across))
        patch = Box.whole((*windows.size, windows.channels)).ranges
        return Piece(
            replace(self, channels=channels.size, padding=padding),
            (Box((*inside, *Box.whole(shape[2:]).ranges)),),
            box,
            {"weight": Box((down, across, *patch, channels)), "bias": box},
        )

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        (input_shape,) = input_shapes
        windows = self.windows(input_shape)
        row = windows.positions[1] * prod(windows.size) * windows.channels
        on_device = max(row, min(PATCHES_ON_DEVICE, MOST_IMAGES_ON_DEVICE * windows.positions[0] * row))
        return super().buffers(input_shape) | {
            "patches": Buffer((max(row, PATCHES),), per_sample=False, shape_on_device=(on_device,))
        }

    def _blocks(
        self, work: Workspace, windows: SlidingWindows, samples: int, rows: Range
    ) -> Iterator[tuple[slice, slice, Any]]:
        """Yield blocks that fit into the buffer: some images, some rows of positions, memory for patches.

        A CPU takes one row at a time, so that its weights stay in the cache, and a GPU as many as fit into the memory.
        """
        memory = work.buffers["patches"]
        shape = (windows.positions[1], *windows.size, windows.channels)
        most = 1 if work.xp is np else max(1, min(rows.size, memory.size // (samples * prod(shape))))
        images = min(samples, memory.size // (most * prod(shape)))
        for row in range(*rows, most):
            at = slice(row, min(row + most, rows.stop))
            for first in range(0, samples, images):
                some = slice(first, min(samples, first + images))
                block = (some.stop - first, at.stop - row, *shape)
                yield some, at, memory[: prod(block)].reshape(block)

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        self.forward_rows(work, inputs, outputs, Range(0, outputs.shape[1]))
        self.end_rows(work, outputs)

    def rows_from(self, rows: Range, input_shape: Shape) -> Range:
        return self.windows(input_shape).on_rows(rows, input_shape[0])

    def forward_rows(self, work: Workspace, inputs: Any, outputs: Any, rows: Range) -> None:
        """Leave the bias and the activation to `end_rows`."""
        kernels, windows, images = work.kernels, self.windows(inputs.shape[1:]), inputs.reshape(*inputs.shape[:3], -1)
        weight = work.parameters["weight"].reshape(*windows.positions, -1, self.channels)
        for some, at, patches in self._blocks(work, windows, len(inputs), rows):
            kernels.gather_patches(images[some], patches, windows, at.start, 0)
            # One matrix product per position, over the patches of all images.
            kernels.matmul(_by_position(patches), _positions(weight[at]), _by_position(outputs[some, at]))

    def end_rows(self, work: Workspace, outputs: Any) -> None:
        work.kernels.add_row(outputs.reshape(len(outputs), -1), work.parameters["bias"].reshape(-1))
        self.activate(work, outputs)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """Compute both gradients of a row while its patches are in the cache."""
        self.backprop(work, outputs, output_gradient)
        self._backward(work, inputs, output_gradient, input_gradient)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        self.backprop(work, outputs, output_gradient)
        if input_gradient is not None:
            self._backward(work, inputs, output_gradient, input_gradient, weights=False)

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        self._backward(work, inputs, output_gradient, None)

    def _backward(
        self, work: Workspace, inputs: Any, output_gradient: Any, input_gradient: Any | None, weights: bool = True
    ) -> None:
        """Compute the gradients of weight and bias, if `weights`, and of the inputs, unless that is None."""
        kernels = work.kernels
        windows, images = self.windows(inputs.shape[1:]), inputs.reshape(*inputs.shape[:3], -1)
        weight = work.parameters["weight"].reshape(*windows.positions, -1, self.channels)
        gradient = work.gradients["weight"].reshape(weight.shape)
        if input_gradient is not None:
            input_gradient.fill(0)
            image_gradients = input_gradient.reshape(images.shape)
        if weights:
            kernels.sum_rows(output_gradient.reshape(len(inputs), -1), work.gradients["bias"].reshape(-1))
        for some, at, patches in self._blocks(work, windows, len(inputs), Range(0, windows.positions[0])):
            by_position, sums = _by_position(patches), _by_position(output_gradient[some, at])
            if weights:
                kernels.gather_patches(images[some], patches, windows, at.start, 0)
                own = _positions(gradient[at])
                kernels.matmul(by_position.swapaxes(1, 2), sums, own, add=some.start > 0)
            if input_gradient is not None:
                kernels.matmul(sums, _positions(weight[at]).swapaxes(1, 2), by_position)
                kernels.scatter_patches(patches, image_gradients[some], windows, at.start, 0)


def _positions(values: Any) -> Any:
    """Return a view (positions, ...) of values (rows, positions of a row, ...)."""
    return values.reshape(-1, *values.shape[2:])


def _by_position(values: Any) -> Any:
    """Return a view (positions, images, n) of values (images, rows, positions of a row, ...)."""
    images, rows, across = values.shape[:3]
    return values.reshape(images, rows * across, -1).swapaxes(0, 1)
