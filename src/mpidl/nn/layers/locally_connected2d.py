"""Local filters that are not shared between positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from mpidl.nn import kernels
from mpidl.nn.layers.conv2d import PATCHES
from mpidl.nn.layers.layer import Buffer, Shape, Weighted, Workspace
from mpidl.nn.windows import PaddingPair, Pair, Windows, windows


@dataclass(frozen=True)
class LocallyConnected2d(Weighted):
    """A convolution whose every position has weights of its own (Dean et al. 2012, section 5; Le et al. 2012).

    Attributes
    ----------
    channels
        Number of output channels, feature maps.
    size
        Of the windows: a number, or [vertical, horizontal].
    activation, initialiser
        See `Weighted`; the weight is (positions down, positions across, size, size, input channels, channels), the
        bias (positions down, positions across, channels).
    stride
        Between positions.
    padding
        Zeros around the image: a number, or [vertical, horizontal], "same" or "valid" (none).
    """

    type: ClassVar[str] = "locally_connected2d"

    channels: Annotated[int, Meta(ge=1)]
    size: Pair = 3
    activation: str = "identity"
    initialiser: str = "he_uniform"
    stride: Pair = 1
    padding: PaddingPair = 0

    def _windows(self, input_shape: Shape) -> Windows:
        return windows(input_shape, self.size, self.stride, self.padding)

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return (*self._windows(input_shape).positions, self.channels)

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """See `Layer`."""
        of = self._windows(input_shape)
        return {
            "weight": (*of.positions, *of.size, of.channels, self.channels),
            "bias": (*of.positions, self.channels),
        }

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """See `Layer`."""
        values = super().initial(parameter, shape, generator, dtype)
        # An initialiser takes the axes of the positions for some of the window's.
        values *= sqrt(prod(shape[:2]))
        return values

    def operations(self, *input_shapes: Shape) -> int:
        """See `Layer`."""
        (input_shape,) = input_shapes
        return 2 * prod(self.parameters(input_shape)["weight"])

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        (input_shape,) = input_shapes
        of = self._windows(input_shape)
        row = of.positions[1] * prod(of.size) * of.channels
        return super().buffers(input_shape) | {
            "patches": Buffer((max(row, PATCHES),), per_sample=False),
        }

    def _blocks(self, work: Workspace, of: Windows, samples: int) -> Iterator[tuple[slice, int, Any]]:
        """Yield images, a row of positions, and memory for their patches: what fits into it at a time."""
        memory, (down, across) = work.buffers["patches"], of.positions
        shape = (1, across, *of.size, of.channels)
        images = min(samples, memory.size // prod(shape))
        for row in range(down):
            for first in range(0, samples, images):
                some = slice(first, min(samples, first + images))
                block = (some.stop - first, *shape)
                yield some, row, memory[: prod(block)].reshape(block)

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        loops, of, images = kernels.of(work.xp), self._windows(inputs.shape[1:]), inputs.reshape(*inputs.shape[:3], -1)
        weight = work.parameters["weight"].reshape(*of.positions, -1, self.channels)
        for some, row, patches in self._blocks(work, of, len(inputs)):
            loops.gather_patches(images[some], patches, of, row, 0)
            # One product for each position, of all images' patches there.
            loops.multiply(_by_position(patches), weight[row], _by_position(outputs[some, row]))
        flat = outputs.reshape(len(inputs), -1)
        loops.add_row(flat, work.parameters["bias"].reshape(-1))
        self.activate(work, outputs)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        xp, loops = work.xp, kernels.of(work.xp)
        of, images = self._windows(inputs.shape[1:]), inputs.reshape(*inputs.shape[:3], -1)
        weight = work.parameters["weight"].reshape(*of.positions, -1, self.channels)
        gradient = work.gradients["weight"].reshape(weight.shape)
        if input_gradient is not None:
            input_gradient.fill(0)
            image_gradients = input_gradient.reshape(images.shape)
        self.chain(work, outputs, output_gradient)
        loops.sum_rows(output_gradient.reshape(len(inputs), -1), work.gradients["bias"].reshape(-1))
        for some, row, patches in self._blocks(work, of, len(inputs)):
            by_position, sums = _by_position(patches), _by_position(output_gradient[some, row])
            loops.gather_patches(images[some], patches, of, row, 0)
            loops.multiply(by_position.swapaxes(1, 2), sums, gradient[row], add=some.start > 0)
            if input_gradient is not None:
                xp.matmul(sums, weight[row].swapaxes(1, 2), out=by_position)
                loops.scatter_patches(patches, image_gradients[some], of, row, 0)


def _by_position(values: Any) -> Any:
    """Return values (images, ..., positions, ...) of one row as (positions, images, ...), a view."""
    across = values.shape[-2] if values.ndim == 3 else values.shape[2]
    return values.reshape(len(values), across, -1).swapaxes(0, 1)
