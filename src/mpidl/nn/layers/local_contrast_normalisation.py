"""Local contrast normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from mpidl.errors import UsageError, quoted
from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Count, Positive


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
    """

    type: ClassVar[str] = "local_contrast_normalisation"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles")

    size: Count = 9
    threshold: Positive = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise UsageError(f"size: {self.size}, expected an odd number")

    def output_shape(self, input_shape: Shape) -> Shape:
        if len(input_shape) not in (2, 3):
            raise UsageError(f"inputs of shape {quoted(input_shape)}, expected (height, width[, channels])")
        return input_shape

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        names = ("offset", "deviation", "first", "second", "half")
        return {name: Buffer(input_shape[:2]) for name in names}

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        """Crop pixels nearer to a cut than twice the radius, because they depend on pixels beyond it."""
        (shape,), reach = input_shapes, 2 * (self.size // 2)
        inside = [
            Range(max(0, own.start - reach), min(extent, own.stop + reach))
            for own, extent in zip(box.ranges[:2], shape[:2], strict=True)
        ]
        down, across = (own.shift(-taken.start) for own, taken in zip(box.ranges[:2], inside, strict=True))
        layer = CroppedNormalisation(**vars(self), kept=(down, across))
        return Piece(layer, (Box((*inside, *box.ranges[2:])),), box, {})

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
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


@dataclass(frozen=True, kw_only=True)
class CroppedNormalisation(LocalContrastNormalisation):
    """The piece of a local contrast normalisation whose outputs are some of the pixels.

    Attributes
    ----------
    kept
        The rows and the columns of the inputs that have outputs.
    """

    kept: tuple[Range, Range]

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*(own.size for own in self.kept), *input_shape[2:])

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        whole = Buffer(input_shape)
        return super().buffers(input_shape) | {"uncropped": whole, "uncropped_gradient": whole}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        super().forward(work, inputs, work.buffers["uncropped"])
        work.xp.copyto(outputs, self._cropped(work.buffers["uncropped"]))

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        uncropped, gradient = work.buffers["uncropped"], work.buffers["uncropped_gradient"]
        gradient.fill(0)
        work.xp.copyto(self._cropped(gradient), output_gradient)
        super().backward_inputs(work, inputs, uncropped, gradient, input_gradient)

    def _cropped(self, images: Any) -> Any:
        """Return a view of the kept pixels of images (n, height, width, ...)."""
        down, across = self.kept
        return images[:, slice(*down), slice(*across)]


@cache
def gaussian_means(xp: Any, extent: int, size: int, dtype: str) -> Any:
    """Return the matrix (extent, extent) that takes Gaussian means over `size` pixels, or fewer at a border."""
    distance = xp.arange(extent)[:, None] - xp.arange(extent)
    weights = xp.where(abs(distance) <= size // 2, xp.exp(-0.5 * (distance / (size / 4)) ** 2), 0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)
