"""Layers without parameters: activation, dropout, flattening, and a part of the values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Literal

from mpidl.errors import UsageError
from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.layers.layer import Activated, Layer, Piece, divided_by
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Count, Fraction, Natural


@dataclass(frozen=True)
class Activation(Activated):
    """``activation(inputs)``, element by element; softmax over the last axis."""

    type: ClassVar[str] = "activation"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    activation: str

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        return {}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        work.xp.copyto(outputs, inputs)
        self.activate(work, outputs)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        work.xp.copyto(input_gradient, output_gradient)
        activation = ACTIVATIONS[self.activation]
        activation.backprop(work.xp, inputs if activation.needs_inputs else outputs, input_gradient)


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets each element to 0 with probability `rate` and divides the others by 1 - rate; identity outside training.

    The elements depend only on the network's seed, the layer, the minibatch, and their position in it.

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

    rate: Fraction = 0.5

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


@dataclass(frozen=True)
class Flatten(Layer):
    """The inputs' elements along a single axis, in C order. `Dense` flattens its inputs itself."""

    type: ClassVar[str] = "flatten"
    cuts: ClassVar[tuple[str, ...]] = ("rows",)

    def output_shape(self, input_shape: Shape) -> Shape:
        return (prod(input_shape),)

    def pieces(self, how: str, number: int, parts: int, *input_shapes: Shape) -> list[Piece]:
        (shape,) = input_shapes
        if how != "rows":
            return super().pieces(how, number, parts, shape)
        rows, size = divided_by("rows", shape[0], parts)[number], prod(shape[1:])
        inputs = Box((rows, *Box.whole(shape[1:]).ranges))
        return [Piece(self, (inputs,), Box((Range(rows.start * size, rows.stop * size),)), {})]

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        work.xp.copyto(outputs, inputs.reshape(outputs.shape))

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is not None:
            work.xp.copyto(input_gradient, output_gradient.reshape(input_gradient.shape))


@dataclass(frozen=True)
class Columns(Layer):
    """The values [first, first + count) along the last axis; an embedding gets ids of the network's inputs unconverted.

    Attributes
    ----------
    first, count
        The first of the values, and their number.
    transform
        "log1p": ``sign(x) * log(1 + |x|)``, for counts and amounts of any magnitude.
    """

    type: ClassVar[str] = "columns"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    first: Natural
    count: Count
    transform: Literal["identity", "log1p"] = "identity"

    @property
    def last(self) -> int:
        """The end of the values."""
        return self.first + self.count

    def output_shape(self, input_shape: Shape) -> Shape:
        if not input_shape or input_shape[-1] < self.last:
            raise UsageError(f"columns {self.first} to {self.last - 1}, the inputs have shape {input_shape}")
        return (*input_shape[:-1], self.count)

    def selected(self, inputs: Box) -> Box | None:
        """Return the part of an array that the outputs are, if the inputs are the part `inputs`; None if changed."""
        if self.transform != "identity":
            return None
        start = inputs.ranges[-1].start
        return Box((*inputs.ranges[:-1], Range(start + self.first, start + self.last)))

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        own = box.ranges[-1]
        taken = Box((*box.ranges[:-1], own.shift(self.first)))
        return Piece(replace(self, first=0, count=own.size), (taken,), box, {})

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        return {"sizes": Buffer((*input_shape[:-1], self.count))} if self.transform == "log1p" else {}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        own = inputs[..., self.first : self.last]
        if self.transform == "identity":
            work.xp.copyto(outputs, own)
            return
        sizes = work.buffers["sizes"]
        work.xp.abs(own, out=sizes)
        work.xp.log1p(sizes, out=outputs)
        work.xp.copysign(outputs, own, out=outputs)
        sizes += 1

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        input_gradient.fill(0)
        own = input_gradient[..., self.first : self.last]
        if self.transform == "identity":
            work.xp.copyto(own, output_gradient)
        else:
            work.xp.divide(output_gradient, work.buffers["sizes"], out=own)
