"""Flattening."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from mpidl.nn.layers.layer import Layer, Shape, Workspace


@dataclass(frozen=True)
class Flatten(Layer):
    """The inputs' elements along a single axis, in C order. `Dense` flattens its inputs itself."""

    type: ClassVar[str] = "flatten"

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return (prod(input_shape),)

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        work.xp.copyto(outputs, inputs.reshape(outputs.shape))

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        if input_gradient is not None:
            work.xp.copyto(input_gradient, output_gradient.reshape(input_gradient.shape))
