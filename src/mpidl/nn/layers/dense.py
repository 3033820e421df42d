"""A fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Piece, Weighted, divide, divided_by
from mpidl.nn.layers.parameterless import Activation
from mpidl.nn.layers.workspace import Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Count


@dataclass(frozen=True)
class Dense(Weighted):
    """``activation(inputs @ weight + bias)`` for inputs of any shape, which are flattened.

    Attributes
    ----------
    units
        Number of outputs.
    initialiser
        A name in `INITIALISERS`, used for the weight; the bias starts at zero. The weight is (inputs, units), the
        bias (units,).
    bias
        Whether to add a bias.
    """

    type: ClassVar[str] = "dense"
    cuts: ClassVar[tuple[str, ...]] = ("units", "inputs")

    units: Count
    activation: str = "identity"
    initialiser: str = "glorot_uniform"
    bias: bool = True

    def output_shape(self, input_shape: Shape) -> Shape:
        return (self.units,)

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        weight: Shape = (prod(input_shape), self.units)
        return {"weight": weight, "bias": (self.units,)} if self.bias else {"weight": weight}

    def operations(self, *input_shapes: Shape) -> int:
        (input_shape,) = input_shapes
        return 2 * prod(input_shape) * self.units

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        (shape,) = input_shapes
        tensors = {"weight": Box((Range(0, prod(shape)), *box.ranges)), "bias": box}
        tensors = {name: tensors[name] for name in self.parameters(shape)}
        return Piece(replace(self, units=box.size), (Box.whole(shape),), box, tensors)

    def pieces(self, how: str, number: int, parts: int, *input_shapes: Shape) -> list[Piece]:
        """Cut by inputs, along their first axis, so that a rank computes a summand of all units."""
        if how != "inputs":
            return super().pieces(how, number, parts, *input_shapes)
        (shape,), outputs = input_shapes, Box.whole((self.units,))
        rows, size = divided_by("inputs", shape[0], parts)[number], prod(shape[1:])
        bias = self.bias and number == 0
        tensors = {"weight": Box((Range(rows.start * size, rows.stop * size), *outputs.ranges))}
        if bias:
            tensors["bias"] = outputs
        inputs = Box((rows, *Box.whole(shape[1:]).ranges))
        summand = Piece(replace(self, activation="identity", bias=bias), (inputs,), outputs, tensors)
        if self.activation == "identity":
            return [summand]
        if self.mixes:
            raise UsageError(f"an output depends on all {self.units} units")
        own = divide("units", (self.units,), parts)[number]
        return [summand, Activation(self.activation).piece(own, (self.units,))]

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        work.kernels.matmul(inputs.reshape(len(inputs), -1), work.parameters["weight"], outputs)
        if self.bias:
            work.kernels.add_row(outputs, work.parameters["bias"])
        self.activate(work, outputs)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        self.backprop(work, outputs, output_gradient)
        if input_gradient is not None:
            flat = input_gradient.reshape(len(inputs), -1)
            work.kernels.matmul(output_gradient, work.parameters["weight"].T, flat)

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        work.kernels.matmul(inputs.reshape(len(inputs), -1).T, output_gradient, work.gradients["weight"])
        if self.bias:
            work.kernels.sum_rows(output_gradient, work.gradients["bias"])
