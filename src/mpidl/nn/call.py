"""A layer's passes forward and backward, with the arrays that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpidl.nn.layers.layer import ByRows, Layer
from mpidl.nn.layers.workspace import Workspace
from mpidl.parameters.ranges import Range


@dataclass(slots=True)
class Call:
    """A layer with all arrays of a forward and a backward pass.

    Attributes
    ----------
    layer : Layer
    workspace : Workspace
    inputs : list of array (n, *shape)
        One for each operand.
    outputs, output_gradient : array (n, *shape)
    input_gradients : list of array or None
        The arrays for the gradients of the inputs; None for those that aren't needed.
    additions : list of (array, array)
        Gradients to which the layer's are then added, each with the layer's.
    """

    layer: Layer
    workspace: Workspace
    inputs: list[Any]
    outputs: Any
    output_gradient: Any
    input_gradients: list[Any]
    additions: list[tuple[Any, Any]]

    def forward(self) -> None:
        """Compute the layer's outputs."""
        inputs = self.inputs if self.layer.joins else self.inputs[0]
        self.layer.forward(self.workspace, inputs, self.outputs)

    def forward_rows(self, rows: Range) -> None:
        """Compute some rows of the outputs of a `ByRows` layer, before `end_rows`."""
        assert isinstance(self.layer, ByRows)
        self.layer.forward_rows(self.workspace, self.inputs[0], self.outputs, rows)

    def end_rows(self) -> None:
        """Complete the outputs after all rows have been computed."""
        assert isinstance(self.layer, ByRows)
        self.layer.end_rows(self.workspace, self.outputs)

    def backward(self) -> None:
        """Compute the gradients with respect to the layer's parameters and inputs."""
        self._backward(self.layer.backward)

    def backward_inputs(self) -> None:
        """Compute only the gradients with respect to the layer's inputs."""
        self._backward(self.layer.backward_inputs)

    def backward_weights(self) -> None:
        """Compute only the gradients with respect to the layer's parameters, after `backward_inputs`."""
        inputs = self.inputs if self.layer.joins else self.inputs[0]
        self.layer.backward_weights(self.workspace, inputs, self.output_gradient)

    def _backward(self, backward: Callable[..., None]) -> None:
        joins = self.layer.joins
        inputs, gradients = (each if joins else each[0] for each in (self.inputs, self.input_gradients))
        backward(self.workspace, inputs, self.outputs, self.output_gradient, gradients)
        for gradient, summand in self.additions:
            gradient += summand
