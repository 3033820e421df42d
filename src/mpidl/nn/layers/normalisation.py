"""Batch normalisation and layer normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Activated, Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Sums, Workspace
from mpidl.parameters.ranges import Box
from mpidl.schema import Positive


@dataclass(frozen=True)
class BatchNormalisation(Activated):
    """``activation(scale * (inputs - mean) / sqrt(variance + epsilon) + shift)``, over all axes but the last.

    In training, the mean and variance are those of the batch, even if it is divided among ranks; in evaluation they are
    running averages, which each batch moves by `momentum` towards its own. These are stored among the parameters, but
    update rules don't change them. All replicas share them: servers divide their changes by a push's staleness + 1, so
    that R replicas move them no further than their mean does in synchronous training.

    Attributes
    ----------
    momentum
        Fraction of the running mean and variance that one batch replaces.
    epsilon
        Added to the variance.

    References
    ----------
    S. Ioffe, C. Szegedy (2015), Batch normalization, algorithm 1, with the unbiased variance in the running average.
    """

    type: ClassVar[str] = "batch_normalisation"
    statistics: ClassVar[tuple[str, ...]] = ("mean", "variance")
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    activation: str = "identity"
    momentum: Annotated[float, Meta(gt=0, le=1)] = 0.1
    epsilon: Positive = 1e-5

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        return dict.fromkeys(("scale", "shift", "mean", "variance"), input_shape[-1:])

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, values: np.ndarray) -> None:
        values.fill(parameter in ("scale", "variance"))

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        (shape,) = input_shapes
        return super().buffers(shape) | {
            "moments": Buffer((3, shape[-1]), per_sample=False, kept=True),
            "slopes": Buffer((2, shape[-1]), per_sample=False, kept=True),
            "rows": Buffer((1,), "int64", per_sample=False, kept=True),
            "sums": Buffer((2, shape[-1]), per_sample=False),
            "group_sums": Buffer((2 * shape[-1] + 1,), "float64", per_sample=False),
        }

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        return Piece(self, (box,), box, dict.fromkeys(self.parameters(box.shape), Box(box.ranges[-1:])))

    def pieces(self, how: str, number: int, parts: int, *input_shapes: Shape) -> list[Piece]:
        (shape,) = input_shapes
        if how == "tiles" and len(shape) == 2:
            raise UsageError(f"inputs of shape {shape} can't be cut into tiles")
        return super().pieces(how, number, parts, shape)

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        xp, kernels, parameters = work.xp, work.kernels, work.parameters
        mean, variance, inverse = work.buffers["moments"]
        values = inputs.reshape(-1, inputs.shape[-1])
        if work.training:
            self._find_moments(work, values, mean, variance)
        else:
            mean[:], variance[:] = parameters["mean"], parameters["variance"]
        xp.add(variance, self.epsilon, out=inverse)
        xp.sqrt(inverse, out=inverse)
        xp.divide(1, inverse, out=inverse)
        flat = outputs.reshape(values.shape)
        kernels.normalise_columns(values, mean, inverse, parameters["scale"], parameters["shift"], flat)
        self.activate(work, outputs)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        kernels, slopes = work.kernels, work.buffers["slopes"]
        mean, _, inverse = work.buffers["moments"]
        values = inputs.reshape(-1, inputs.shape[-1])
        gradient = output_gradient.reshape(values.shape)
        self.backprop(work, outputs, output_gradient)
        kernels.backprop_scale_shift(values, mean, inverse, gradient, *slopes)
        sums = slopes
        if work.group is not None:
            sums = self._sum_gradients(work, work.group, len(values) / int(work.buffers["rows"][0]))
        if input_gradient is not None:
            kernels.backprop_columns(
                values, mean, inverse, work.parameters["scale"], *sums, gradient, input_gradient.reshape(values.shape)
            )

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        gradients, (mean, variance, _) = work.gradients, work.buffers["moments"]
        gradients["scale"][:], gradients["shift"][:] = work.buffers["slopes"]
        if work.group is not None and work.group.rank > 0:
            # The gradients of all ranks are added up, and that of the statistics counts once.
            gradients["mean"].fill(0)
            gradients["variance"].fill(0)
            return
        rows = inputs.size // inputs.shape[-1] if work.group is None else int(work.buffers["rows"][0])
        unbiased = rows / max(1, rows - 1)
        gradients["mean"][:] = self.momentum * (work.parameters["mean"] - mean)
        gradients["variance"][:] = self.momentum * (work.parameters["variance"] - unbiased * variance)

    @staticmethod
    def _find_moments(work: Workspace, values: Any, mean: Any, variance: Any) -> None:
        """Set mean and variance of the columns, over the values of all ranks."""
        work.kernels.column_moments(values, mean, variance)
        if work.group is None:
            return
        columns, rows, total = mean.size, len(values), work.buffers["group_sums"]
        own, count, squares = total[:columns], total[columns : columns + 1], total[columns + 1 :]
        # The mean of the ranks' means, then that of their variances plus the squared distances of their means from it.
        own[:] = mean
        own *= rows
        count.fill(rows)
        work.group.sum(total[: columns + 1])
        own /= count
        work.buffers["rows"][:] = count
        squares[:] = mean
        squares -= own
        squares *= squares
        squares += variance
        squares *= rows
        work.group.sum(squares)
        squares /= count
        mean[:], variance[:] = own, squares

    @staticmethod
    def _sum_gradients(work: Workspace, group: Sums, share: float) -> Any:
        """Return the sums of all ranks' gradients of scale and shift, times this rank's share of the rows.

        `backprop_columns` divides them by the number of its rows.
        """
        total, sums = work.buffers["group_sums"][:-1].reshape(2, -1), work.buffers["sums"]
        total[:] = work.buffers["slopes"]
        group.sum(total)
        work.xp.multiply(total, share, out=sums, casting="same_kind")
        return sums


@dataclass(frozen=True)
class LayerNormalisation(Layer):
    """``scale * (inputs - mean) / sqrt(variance + epsilon) + shift`` over the last axis.

    Attributes
    ----------
    epsilon
        Added to the variance.

    References
    ----------
    J. Ba, J. Kiros, G. Hinton (2016), Layer normalization, equations 3 and 4.
    """

    type: ClassVar[str] = "layer_normalisation"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles")

    epsilon: Positive = 1e-5

    @property
    def mixes(self) -> bool:
        return True

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        return {"scale": input_shape[-1:], "shift": input_shape[-1:]}

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, values: np.ndarray) -> None:
        values.fill(parameter == "scale")

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        rows = Buffer((prod(input_shape[:-1]),))
        slopes = Buffer((2, input_shape[-1]), per_sample=False, kept=True)
        return {"mean": rows, "inverse": rows, "slopes": slopes}

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        own = Box(box.ranges[-1:])
        return Piece(self, (box,), box, {"scale": own, "shift": own})

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        parameters, values = work.parameters, inputs.reshape(-1, inputs.shape[-1])
        mean, inverse = (work.buffers[name].reshape(-1) for name in ("mean", "inverse"))
        work.kernels.normalise_rows(
            values, self.epsilon, parameters["scale"], parameters["shift"], outputs.reshape(values.shape), mean, inverse
        )

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        values, slopes = inputs.reshape(-1, inputs.shape[-1]), work.buffers["slopes"]
        mean, inverse = (work.buffers[name].reshape(-1) for name in ("mean", "inverse"))
        result = output_gradient if input_gradient is None else input_gradient
        work.kernels.backprop_rows(
            values, mean, inverse, work.parameters["scale"], output_gradient.reshape(values.shape),
            *slopes, result.reshape(values.shape),
        )  # fmt: skip

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        work.gradients["scale"][:], work.gradients["shift"][:] = work.buffers["slopes"]
