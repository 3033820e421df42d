"""A fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.nn.layers.layer import Shape, Weighted, Workspace


@dataclass(frozen=True)
class Dense(Weighted):
    """``activation(inputs @ weight + bias)`` for inputs of any shape, which are flattened.

    Attributes
    ----------
    units
        Number of outputs.
    activation
        A name in `ACTIVATIONS`.
    initialiser
        A name in `INITIALISERS`, used for the weight; the bias starts at zero. The weight is (inputs, units), the
        bias (units,).
    """

    type: ClassVar[str] = "dense"

    units: Annotated[int, Meta(ge=1)]
    activation: str = "identity"
    initialiser: str = "glorot_uniform"

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return (self.units,)

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """See `Layer`."""
        return {"weight": (prod(input_shape), self.units), "bias": (self.units,)}

    def operations(self, *input_shapes: Shape) -> int:
        """See `Layer`."""
        (input_shape,) = input_shapes
        return 2 * prod(input_shape) * self.units

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        work.xp.matmul(inputs.reshape(len(inputs), -1), work.parameters["weight"], out=outputs)
        work.kernels.add_row(outputs, work.parameters["bias"])
        self.activate(work, outputs)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        xp = work.xp
        self.backprop(work, outputs, output_gradient)
        xp.matmul(inputs.reshape(len(inputs), -1).T, output_gradient, out=work.gradients["weight"])
        work.kernels.sum_rows(output_gradient, work.gradients["bias"])
        if input_gradient is not None:
            flat = input_gradient.reshape(len(inputs), -1)
            xp.matmul(output_gradient, work.parameters["weight"].T, out=flat)
