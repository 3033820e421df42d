"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets each element to 0 with probability `rate` and divides the others by 1 - rate; identity outside training.

    The choice of elements depends only on the network's seed, the layer, the minibatch, and an element's place in it.

    Attributes
    ----------
    rate
        Probability that an element is set to 0.

    References
    ----------
    N. Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting, section 10.
    """

    type: ClassVar[str] = "dropout"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    rate: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        return {"factors": Buffer(input_shape)}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        if not work.training:
            work.xp.copyto(outputs, inputs)
            return
        work.kernels.dropout(
            inputs, work.buffers["factors"], outputs, self.rate, work.key(), work.first, work.strides
        )  # fmt: skip

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is not None:
            work.xp.multiply(output_gradient, work.buffers["factors"], out=input_gradient)
