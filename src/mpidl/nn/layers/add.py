"""The sum of several layers' outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Activated, Joining
from mpidl.nn.layers.workspace import Shape, Workspace


@dataclass(frozen=True)
class Add(Activated, Joining):
    """``activation`` of the sum of the outputs of the layers that ``inputs`` names, all of one shape.

    It makes a residual block (He et al. 2016) if ``inputs`` names the block's last layer and the block's own input.

    Attributes
    ----------
    activation
        A name in `ACTIVATIONS`.
    """

    type: ClassVar[str] = "add"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    activation: str = "identity"

    def output_shape(self, *input_shapes: Shape) -> Shape:
        first, *others = input_shapes
        for other in others:
            if other != first:
                raise UsageError(f"inputs: shapes {first} and {other}, expected the same")
        return first

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        work.xp.copyto(outputs, inputs[0])
        for other in inputs[1:]:
            outputs += other
        self.activate(work, outputs)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any
    ) -> None:
        self.backprop(work, outputs, output_gradient)
        for gradient in input_gradient:
            if gradient is not None:
                work.xp.copyto(gradient, output_gradient)
