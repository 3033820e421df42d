"""Local contrast normalisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.nn.sliding_windows import Padding
from mpidl.parameters.box import Box
from mpidl.parameters.ranges import Range

#: Pixels [before, after].
Sides = Annotated[list[Padding], Meta(min_length=2, max_length=2)]


@dataclass(frozen=True)
class LocalContrastNormalisation(Layer):
    """Subtracts the local mean from images and divides them by the local standard deviation.

    ``v = x - G * mean(x)`` and ``y = v / max(threshold, sqrt(G * mean(v^2)))``, where G is a Gaussian window and the
    means are over the channels (Jarrett et al. 2009, section 2; Le et al. 2012, section 3.2). Images are (height,
    width, channels) or (height, width).

    Attributes
    ----------
    size
        Size of the window, an odd number of pixels; its standard deviation is a quarter of that, as in Torch. The
        window sums to 1, even at a border.
    threshold
        Lower bound of the divisor, greater than zero.
    crop
        Pixels to crop from the outputs: [[top, bottom], [left, right]]; none by default.
    """

    type: ClassVar[str] = "local_contrast_normalisation"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles")

    size: Annotated[int, Meta(ge=1)] = 9
    threshold: Annotated[float, Meta(gt=0)] = 0.01
    crop: Annotated[list[Sides], Meta(min_length=2, max_length=2)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise UsageError(f"size: {self.size}, expected an odd number")

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) not in (2, 3):
            raise UsageError(f"inputs of shape {input_shape}, expected (height, width, channels) or (height, width)")
        if self.crop is None:
            return input_shape
        height, width = (extent - sum(sides) for extent, sides in zip(input_shape[:2], self.crop, strict=True))
        if min(height, width) < 1:
            raise UsageError(f"crop: {self.crop} leaves nothing of {input_shape[0]} x {input_shape[1]} pixels")
        return (height, width, *input_shape[2:])

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        names = ("offset", "deviation", "first", "second", "half")
        found = {name: Buffer(input_shape[:2]) for name in names}
        if self.crop is not None:
            found |= {"uncropped": Buffer(input_shape), "uncropped_gradient": Buffer(input_shape)}
        return found

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        """Crop pixels nearer to a cut than twice the radius, because they depend on pixels beyond it."""
        (shape,), reach = input_shapes, 2 * (self.size // 2)
        inside = [
            Range(max(0, own.start - reach), min(extent, own.stop + reach))
            for own, extent in zip(box.ranges[:2], shape[:2], strict=True)
        ]
        crop = [
            [own.start - taken.start, taken.stop - own.stop] for own, taken in zip(box.ranges[:2], inside, strict=True)
        ]
        return Piece(replace(self, crop=crop), (Box((*inside, *box.ranges[2:])),), box, {})

    def _cropped(self, images: Any) -> Any:
        """Return a view of the images (n, height, width, ...) without the cropped pixels."""
        (top, bottom), (left, right) = self.crop or [[0, 0], [0, 0]]
        height, width = images.shape[1:3]
        return images[:, top : height - bottom, left : width - right]

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        if self.crop is None:
            self._normalise(work, inputs, outputs)
        else:
            self._normalise(work, inputs, work.buffers["uncropped"])
            work.xp.copyto(outputs, self._cropped(work.buffers["uncropped"]))

    def _normalise(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        xp, kernels, planes = work.xp, work.kernels, work.buffers
        offset, deviation, local = planes["offset"], planes["deviation"], planes["first"]
        images, square = inputs.reshape(offset.size, -1), planes["second"]
        kernels.channel_moments(images, offset.reshape(-1), deviation.reshape(-1))
        self._smooth(work, offset, local)
        # First the mean of v over the channels, then that of v^2: the variance plus the square of the mean.
        xp.subtract(offset, local, out=offset)
        xp.multiply(offset, offset, out=square)
        xp.add(deviation, square, out=square)
        self._smooth(work, square, deviation)
        xp.sqrt(deviation, out=deviation)
        xp.maximum(deviation, self.threshold, out=deviation)
        kernels.normalise_contrast(images, local.reshape(-1), deviation.reshape(-1), outputs.reshape(images.shape))

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        if self.crop is not None:
            cropped, outputs = output_gradient, work.buffers["uncropped"]
            output_gradient = work.buffers["uncropped_gradient"]
            output_gradient.fill(0)
            work.xp.copyto(self._cropped(output_gradient), cropped)
        xp, kernels, planes = work.xp, work.kernels, work.buffers
        offset, deviation, slopes, shifts = (planes[name] for name in ("offset", "deviation", "first", "second"))
        known = [each.reshape(deviation.size, -1) for each in (outputs, output_gradient)] + [deviation.reshape(-1)]
        kernels.contrast_slopes(*known, self.threshold, slopes.reshape(-1), shifts.reshape(-1))
        self._smooth(work, slopes, slopes, transposed=True)
        # The local mean receives the gradient with respect to v, summed over the channels, with a minus sign.
        xp.multiply(offset, slopes, out=offset)
        xp.multiply(offset, 2, out=offset)
        xp.add(shifts, offset, out=shifts)
        self._smooth(work, shifts, shifts, transposed=True)
        kernels.backprop_contrast(
            *known, slopes.reshape(-1), shifts.reshape(-1), input_gradient.reshape(known[0].shape)
        )

    def _smooth(self, work: Workspace, planes: Any, result: Any, transposed: bool = False) -> None:
        """Set `result` to the Gaussian means of `planes` (n, height, width), or their adjoint; may work in place."""
        _, height, width = planes.shape
        half = work.buffers["half"]
        down = gaussian_means(work.xp, height, self.size, planes.dtype.name)
        across = gaussian_means(work.xp, width, self.size, planes.dtype.name)
        work.kernels.matmul(down.T if transposed else down, planes, half)
        across = across if transposed else across.T
        work.kernels.matmul(half.reshape(-1, width), across, result.reshape(-1, width))


@cache
def gaussian_means(xp: Any, extent: int, size: int, dtype: str) -> Any:
    """Return the matrix (extent, extent) that takes Gaussian means over `size` pixels, or fewer at a border."""
    distance = xp.arange(extent)[:, None] - xp.arange(extent)
    weights = xp.where(abs(distance) <= size // 2, xp.exp(-0.5 * (distance / (size / 4)) ** 2), 0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)
