"""Convolution of images, and the base class of layers with a kernel at each position of sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from mpidl.errors import UsageError
from mpidl.nn import winograd
from mpidl.nn.layers.layer import ByRows, Piece, Weighted, divided_by
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.nn.sliding_windows import PaddingPair, Pair, SlidingWindows, sliding_windows, under_windows
from mpidl.parameters.ranges import Box, Range, split
from mpidl.schema import Count

#: Elements in the patches of one block: few enough for a CPU's cache, or enough to keep a GPU busy.
PATCHES, PATCHES_ON_DEVICE = 1 << 19, 1 << 25
#: Maximum number of images in one block, on a CPU and on a GPU.
MOST_IMAGES, MOST_IMAGES_ON_DEVICE = 64, 1024


@dataclass(frozen=True)
class Convolution(Weighted, ByRows):
    """A layer with a kernel at each position of sliding windows on images (height, width, channels) or (height, width).

    Attributes
    ----------
    channels
        Number of output channels (feature maps).
    size
        Size of the kernel: a number, or [vertical, horizontal].
    stride
        Pixels between neighbouring positions of the kernel.
    padding
        Zeros around the image: a number, [vertical, horizontal], [[top, bottom], [left, right]], "same" or "valid"
        (none).
    """

    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels")

    channels: Count
    size: Pair = 3
    activation: str = "identity"
    initialiser: str = "he_uniform"
    stride: Pair = 1
    padding: PaddingPair = 0

    def windows(self, input_shape: Shape) -> SlidingWindows:
        """Return the windows on images of this shape."""
        return sliding_windows(input_shape, self.size, self.stride, self.padding)

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*self.windows(input_shape).positions, self.channels)


@dataclass(frozen=True)
class Conv2d(Convolution):
    """``activation(inputs * weight + bias)``, where * is the cross-correlation of images (height, width, channels).

    Attributes
    ----------
    initialiser
        A name in `INITIALISERS`, used for the weight; the bias starts at zero. The weight is (size, size, input
        channels / groups, channels), the bias (channels,).
    groups
        Number of groups into which input and output channels are divided; each group of outputs depends only on its own
        group of inputs (Krizhevsky et al. 2012, section 3.2).
    """

    type: ClassVar[str] = "conv2d"

    groups: Count = 1

    def windows(self, input_shape: Shape) -> SlidingWindows:
        found = super().windows(input_shape)
        for whose, count in (("input", found.channels), ("output", self.channels)):
            if count % self.groups:
                raise UsageError(f"groups: {self.groups}, expected a divisor of the {count} {whose} channels")
        return found

    def _tiling(self, windows: SlidingWindows) -> winograd.Tiling | None:
        return winograd.choose_tiling(windows, self.channels) if self.groups == 1 else None

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        windows = self.windows(input_shape)
        return {"weight": (*windows.size, windows.channels // self.groups, self.channels), "bias": (self.channels,)}

    def operations(self, *input_shapes: Shape) -> int:
        (input_shape,) = input_shapes
        return 2 * prod(self.parameters(input_shape)["weight"]) * prod(self.windows(input_shape).positions)

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        """Compute whole groups of channels, or a part of one."""
        (shape,) = input_shapes
        windows, (down, across, channels) = self.windows(shape), box.ranges
        inside, padding = under_windows(windows, shape, (down, across))
        width, depth = self.channels // self.groups, windows.channels // self.groups
        first, last = channels.start // width, (channels.stop - 1) // width
        layer = replace(self, channels=channels.size, groups=last + 1 - first, padding=padding)
        taken = (Range(first * depth, (last + 1) * depth),) if len(shape) == 3 else ()
        weight = Box((*Box.whole((*windows.size, depth)).ranges, channels))
        return Piece(layer, (Box((*inside, *taken)),), box, {"weight": weight, "bias": Box((channels,))})

    def pieces(self, how: str, number: int, parts: int, *input_shapes: Shape) -> list[Piece]:
        """Divide whole groups of channels if there are enough, so that each rank takes only its own inputs."""
        if how != "channels" or self.groups == 1:
            return super().pieces(how, number, parts, *input_shapes)
        width = self.channels // self.groups
        if parts <= self.groups:
            groups = split(self.groups, parts)[number]
            own = Range(groups.start * width, groups.stop * width)
        else:
            ranks = split(parts, self.groups)
            (group,) = (group for group, some in enumerate(ranks) if some.start <= number < some.stop)
            some = divided_by("channels of a group", width, ranks[group].size)
            own = some[number - ranks[group].start].shift(group * width)
        positions = self.windows(*input_shapes).positions
        if self.mixes:
            raise UsageError(f"an output depends on all {self.channels} channels")
        return [self.piece(Box((*Box.whole(positions).ranges, own)), *input_shapes)]

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        (input_shape,) = input_shapes
        windows = self.windows(input_shape)
        weight = self.parameters(input_shape)["weight"]
        row = windows.positions[1] * prod(weight[:-1])
        patches, on_device = (
            max(row, min(limit, images * windows.positions[0] * row))
            for limit, images in ((PATCHES, MOST_IMAGES), (PATCHES_ON_DEVICE, MOST_IMAGES_ON_DEVICE))
        )
        tiling = self._tiling(windows)
        # A CPU needs either patches or tiles, a GPU always patches.
        sizes = {"patches": (patches, on_device), "transposed": (prod(weight), prod(weight))}
        found = super().buffers(input_shape) | {
            name: Buffer((size if tiling is None else 0,), per_sample=False, shape_on_device=(on_device,))
            for name, (size, on_device) in sizes.items()
        }
        found["sums"] = Buffer((self.channels,), per_sample=False)
        return found if tiling is None else found | winograd.buffers(tiling)

    def _blocks(
        self, work: Workspace, windows: SlidingWindows, samples: int, of: Range
    ) -> Iterator[tuple[slice, int, int, Any]]:
        """Yield blocks of rows that fit into the buffer: images, first row, number of rows, memory for patches."""
        memory, down = work.buffers["patches"], of.size
        shape = (windows.positions[1], *windows.size, windows.channels // self.groups)
        rows = min(down, memory.size // prod(shape))
        images = min(samples, max(1, memory.size // (down * prod(shape))))
        for first in range(0, samples, images):
            some = slice(first, min(samples, first + images))
            for row in range(*of, rows):
                count = min(rows, of.stop - row)
                block = (some.stop - some.start, count, *shape)
                yield some, row, count, memory[: prod(block)].reshape(block)

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        images, windows = inputs.reshape(*inputs.shape[:3], -1), self.windows(inputs.shape[1:])
        tiling = self._tiling(windows)
        if work.xp is np and tiling is not None:
            for at in winograd.forward(work, tiling, images, outputs):
                self.activate(work, outputs, at)
        else:
            self._forward(work, windows, images, outputs)

    def _forward(self, work: Workspace, windows: SlidingWindows, images: Any, outputs: Any) -> None:
        kernels, weight = work.kernels, work.parameters["weight"]
        depth, width = weight.shape[2], self.channels // self.groups
        matrix = weight.reshape(-1, self.channels)
        for some, row, rows, patches in self._blocks(work, windows, len(images), Range(0, outputs.shape[1])):
            at = some, slice(row, row + rows)
            sums = outputs[at].reshape(-1, self.channels)
            for group in range(self.groups):
                columns = slice(group * width, (group + 1) * width)
                gathered = kernels.patch_matrix(images[some], patches, windows, row, group * depth)
                kernels.matmul(gathered, matrix[:, columns], sums[:, columns])
            kernels.add_row(sums, work.parameters["bias"])
            self.activate(work, outputs, at)

    def rows_from(self, rows: Range, input_shape: Shape) -> Range:
        windows = self.windows(input_shape)
        found, tiling = windows.on_rows(rows, input_shape[0]), self._tiling(windows)
        return found if tiling is None else tiling.whole_tiles(found)

    def forward_rows(self, work: Workspace, inputs: Any, outputs: Any, rows: Range) -> None:
        """Leave the activation to `end_rows`, and the bias too, except with tiles."""
        images, windows = inputs.reshape(*inputs.shape[:3], -1), self.windows(inputs.shape[1:])
        tiling = self._tiling(windows)
        if tiling is not None:
            for _ in winograd.forward(work, tiling, images, outputs, rows):
                pass
            return
        self._multiply_rows(work, windows, images, outputs, rows)

    def _multiply_rows(self, work: Workspace, windows: SlidingWindows, images: Any, outputs: Any, of: Range) -> None:
        kernels, weight = work.kernels, work.parameters["weight"]
        depth, width = weight.shape[2], self.channels // self.groups
        matrix = weight.reshape(-1, self.channels)
        for some, row, rows, patches in self._blocks(work, windows, len(images), of):
            # Only rows of the same image are adjacent.
            sums = outputs[some, row : row + rows]
            sums = sums.reshape(len(sums), -1, self.channels)
            for group in range(self.groups):
                columns = slice(group * width, (group + 1) * width)
                gathered = kernels.patch_matrix(images[some], patches, windows, row, group * depth)
                by_image = gathered.reshape(len(sums), -1, len(matrix))
                own = matrix[:, columns]
                repeated = np.lib.stride_tricks.as_strided(own, (len(sums), *own.shape), (0, *own.strides))
                kernels.matmul(by_image, repeated, sums[:, :, columns])

    def end_rows(self, work: Workspace, outputs: Any) -> None:
        if "tiles" not in work.buffers:
            work.kernels.add_row(outputs.reshape(-1, self.channels), work.parameters["bias"])
        self.activate(work, outputs)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """Compute both gradients of a block while it is in the cache."""

        def backprop(at: tuple[slice, slice]) -> Any:
            self.backprop(work, outputs, output_gradient, at)
            return self._sum_bias(work, output_gradient[at])

        work.gradients["bias"].fill(0)
        self._backward(work, inputs, backprop, input_gradient)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        self.backprop(work, outputs, output_gradient)
        if input_gradient is not None:
            self._backward(work, inputs, output_gradient.__getitem__, input_gradient, weights=False)

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        work.gradients["bias"].fill(0)
        self._backward(work, inputs, lambda at: self._sum_bias(work, output_gradient[at]), None)

    def _sum_bias(self, work: Workspace, gradient: Any) -> Any:
        """Add a block's gradient to the bias's, and return it."""
        sums, bias = work.buffers["sums"], work.gradients["bias"]
        work.kernels.sum_rows(gradient.reshape(-1, self.channels), sums)
        work.xp.add(bias, sums, out=bias)
        return gradient

    def _backward(
        self, work: Workspace, inputs: Any, backprop: Callable[[tuple[slice, slice]], Any], input_gradient: Any | None,
        weights: bool = True,
    ) -> None:  # fmt: skip
        """Compute the gradients of the weight, if `weights`, and of the inputs, from blocks that `backprop` returns."""
        images, windows = inputs.reshape(*inputs.shape[:3], -1), self.windows(inputs.shape[1:])
        image_gradient = None if input_gradient is None else input_gradient.reshape(images.shape)
        tiling = self._tiling(windows)
        if work.xp is np and tiling is not None:
            winograd.backward(work, tiling, images, backprop, image_gradient, weights)
        else:
            self._backward_patches(work, windows, images, backprop, image_gradient, weights)

    def _backward_patches(
        self, work: Workspace, windows: SlidingWindows, images: Any, backprop: Callable[[tuple[slice, slice]], Any],
        image_gradient: Any | None, weights: bool,
    ) -> None:  # fmt: skip
        kernels, weight = work.kernels, work.parameters["weight"]
        depth, width = weight.shape[2], self.channels // self.groups
        transposed = work.buffers["transposed"].reshape(self.channels, -1)
        gradient = work.gradients["weight"].reshape(-1, self.channels)
        if weights:
            gradient.fill(0)
        if image_gradient is not None:
            image_gradient.fill(0)
            transposed[:] = weight.reshape(-1, self.channels).T
        for some, row, rows, patches in self._blocks(work, windows, len(images), Range(0, windows.positions[0])):
            sums = backprop((some, slice(row, row + rows))).reshape(-1, self.channels)
            flat = patches.reshape(len(sums), -1)
            for group in range(self.groups):
                columns = slice(group * width, (group + 1) * width)
                if weights:
                    gathered = kernels.patch_matrix(images[some], patches, windows, row, group * depth)
                    kernels.matmul(gathered.T, sums[:, columns], gradient[:, columns], add=True)
                if image_gradient is not None:
                    kernels.matmul(sums[:, columns], transposed[columns], flat)
                    kernels.scatter_patches(patches, image_gradient[some], windows, row, group * depth)
