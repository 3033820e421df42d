"""Layer normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.box import Box


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

    epsilon: Annotated[float, Meta(gt=0)] = 1e-5

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
