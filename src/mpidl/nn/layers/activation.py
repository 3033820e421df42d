"""An activation as a layer of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.workspace import Shape, Workspace
from mpidl.schema import choose


@dataclass(frozen=True)
class Activation(Layer):
    """``activation(inputs)``, element by element; softmax over the last axis.

    Attributes
    ----------
    activation
        A name in `ACTIVATIONS`.
    """

    type: ClassVar[str] = "activation"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    activation: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(ACTIVATIONS, "activation", self.activation)

    @property
    def mixes(self) -> bool:
        return ACTIVATIONS[self.activation].mixes

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        work.xp.copyto(outputs, inputs)
        ACTIVATIONS[self.activation].apply(work.xp, outputs)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        work.xp.copyto(input_gradient, output_gradient)
        activation = ACTIVATIONS[self.activation]
        activation.backprop(work.xp, inputs if activation.needs_inputs else outputs, input_gradient)
