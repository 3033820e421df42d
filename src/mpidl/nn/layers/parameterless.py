"""Layers without parameters: activation, dropout, flattening, and layers that join the outputs of several."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from mpidl.errors import UsageError
from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.cuts import divided_by
from mpidl.nn.layers.layer import Activated, Joining, Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Fraction


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
class Add(Activated, Joining):
    """``activation`` of the sum of the outputs of the layers that ``inputs`` names, all of one shape.

    It makes a residual block (He et al. 2016) if ``inputs`` names the block's last layer and the block's own input.
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


@dataclass(frozen=True)
class Concatenate(Joining):
    """The outputs of the layers that ``inputs`` names, concatenated along the last axis."""

    type: ClassVar[str] = "concatenate"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "tiles", "channels", "units")

    def output_shape(self, *input_shapes: Shape) -> Shape:
        first, *others = input_shapes
        for other in others:
            if other[:-1] != first[:-1]:
                raise UsageError(f"inputs: shapes {first} and {other}, expected the same except for the last axis")
        return (*first[:-1], sum(shape[-1] for shape in input_shapes))

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        inputs, start = [], 0
        for shape in input_shapes:
            own = box.ranges[-1].shift(-start).intersect(Range(0, shape[-1])) or Range(0, 0)
            inputs.append(Box((*box.ranges[:-1], own)))
            start += shape[-1]
        return Piece(self, tuple(inputs), box, {})

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        start = 0
        for each in inputs:
            outputs[..., start : start + each.shape[-1]] = each
            start += each.shape[-1]

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any
    ) -> None:
        start = 0
        for each, gradient in zip(inputs, input_gradient, strict=True):
            if gradient is not None:
                gradient[...] = output_gradient[..., start : start + each.shape[-1]]
            start += each.shape[-1]
