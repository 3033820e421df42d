"""Columns: a part of the values along the last axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Count, Natural


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
