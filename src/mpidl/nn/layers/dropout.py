"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.nn.layers.layer import Buffer, Layer, Shape, Workspace


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets each element to 0 with probability `rate` and divides the others by 1 - rate; identity outside training.

    The choice of elements depends only on the network's seed, the layer and the minibatch.

    Attributes
    ----------
    rate
        Probability that an element is set to 0.

    References
    ----------
    N. Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting, section 10.
    """

    type: ClassVar[str] = "dropout"

    rate: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return input_shape

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        return {"draws": Buffer(input_shape, "float32"), "factors": Buffer(input_shape)}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        xp, draws, factors = work.xp, work.buffers["draws"], work.buffers["factors"]
        if not work.training:
            xp.copyto(outputs, inputs)
            return
        work.random().random(dtype=draws.dtype, out=draws)
        xp.greater_equal(draws, self.rate, out=factors, casting="unsafe")
        factors *= 1 / (1 - self.rate)
        xp.multiply(inputs, factors, out=outputs)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        if input_gradient is not None:
            work.xp.multiply(output_gradient, work.buffers["factors"], out=input_gradient)
