"""Batch normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from mpidl.nn.layers.layer import Activated, Buffer, Shape, Workspace


@dataclass(frozen=True)
class BatchNormalisation(Activated):
    """``activation(scale * (inputs - mean) / sqrt(variance + epsilon) + shift)``, over all axes but the last.

    In training, the mean and variance are the batch's; otherwise they are running averages, each moved by `momentum`
    towards every batch's. The running averages are stored among the parameters, and update rules leave them alone.
    All replicas move the same ones: with R replicas, whose pushes are R - 1 updates stale, `momentum` times R should
    stay below 1.

    Attributes
    ----------
    activation
        A name in `ACTIVATIONS`.
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

    activation: str = "identity"
    momentum: Annotated[float, Meta(gt=0, le=1)] = 0.1
    epsilon: Annotated[float, Meta(gt=0)] = 1e-5

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return input_shape

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """See `Layer`."""
        return dict.fromkeys(("scale", "shift", "mean", "variance"), input_shape[-1:])

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """See `Layer`."""
        return np.ones(shape, dtype) if parameter in ("scale", "variance") else np.zeros(shape, dtype)

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        (shape,) = input_shapes
        return super().buffers(shape) | {"moments": Buffer((3, shape[-1]), per_sample=False, kept=True)}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        xp, kernels, parameters = work.xp, work.kernels, work.parameters
        mean, variance, inverse = work.buffers["moments"]
        values = inputs.reshape(-1, inputs.shape[-1])
        if work.training:
            kernels.column_moments(values, mean, variance)
        else:
            mean[:], variance[:] = parameters["mean"], parameters["variance"]
        xp.add(variance, self.epsilon, out=inverse)
        xp.sqrt(inverse, out=inverse)
        xp.divide(1, inverse, out=inverse)
        flat = outputs.reshape(values.shape)
        kernels.normalise_columns(values, mean, inverse, parameters["scale"], parameters["shift"], flat)
        self.activate(work, outputs)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        kernels, gradients = work.kernels, work.gradients
        mean, variance, inverse = work.buffers["moments"]
        values = inputs.reshape(-1, inputs.shape[-1])
        gradient = output_gradient.reshape(values.shape)
        self.backprop(work, outputs, output_gradient)
        kernels.backprop_scale_shift(values, mean, inverse, gradient, gradients["scale"], gradients["shift"])
        if input_gradient is not None:
            kernels.backprop_columns(
                values, mean, inverse, work.parameters["scale"], gradients["scale"], gradients["shift"], gradient,
                input_gradient.reshape(values.shape),
            )  # fmt: skip
        unbiased = len(values) / max(1, len(values) - 1)
        gradients["mean"][:] = self.momentum * (work.parameters["mean"] - mean)
        gradients["variance"][:] = self.momentum * (work.parameters["variance"] - unbiased * variance)
