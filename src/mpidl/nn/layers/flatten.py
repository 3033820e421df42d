"""Flattening."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from mpidl.nn.cuts import divided_by
from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Shape, Workspace
from mpidl.parameters.box import Box
from mpidl.parameters.ranges import Range


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
