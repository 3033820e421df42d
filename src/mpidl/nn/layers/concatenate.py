"""Concatenation of several layers' outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Joining, Piece
from mpidl.nn.layers.workspace import Shape, Workspace
from mpidl.parameters.box import Box
from mpidl.parameters.ranges import Range


@dataclass(frozen=True)
class Concatenate(Joining):
    """The outputs of the layers that ``inputs`` names, one after the other along the last axis."""

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
