"""Layers that join the outputs of several: their sum, the values of all, or products of pairs of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from mpidl.errors import UsageError
from mpidl.nn.layers.layer import Activated, Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range


class Joining(Layer):
    """A layer without parameters that takes the outputs of several."""

    joins: ClassVar[bool] = True

    def parameters(self, *input_shapes: Shape) -> dict[str, Shape]:
        return {}

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        return {}


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


@dataclass(frozen=True)
class Interaction(Joining):
    """The vectors among the outputs of the layers that ``inputs`` names, then the scalar products of all pairs.

    Each of these outputs is a vector (d,), such as that of a dense layer, or several, (f, d), such as those of an
    embedding. Each vector in turn is multiplied with all vectors before it.

    References
    ----------
    M. Naumov et al. (2019), Deep learning recommendation model for personalization and recommendation systems,
    section 2.1.
    """

    type: ClassVar[str] = "interaction"

    def output_shape(self, *input_shapes: Shape) -> Shape:
        length = input_shapes[0][-1:]
        for shape in input_shapes:
            if len(shape) not in (1, 2) or shape[-1:] != length:
                raise UsageError(
                    f"inputs: shapes {', '.join(map(str, input_shapes))}, expected (d,) or (f, d) of one d"
                )
        count = _count(input_shapes)
        single = sum(len(shape) == 1 for shape in input_shapes)
        if count < 2:
            raise UsageError(f"inputs: shape {input_shapes[0]} has one vector, expected at least two")
        return (single * length[0] + count * (count - 1) // 2,)

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        count, length = _count(input_shapes), input_shapes[0][-1]
        return {
            "vectors": Buffer((count, length)),
            "turned": Buffer((length, count)),
            "products": Buffer((count, count)),
        }

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        vectors, turned, products = (work.buffers[name] for name in ("vectors", "turned", "products"))
        start = first = 0
        for each in inputs:
            end = start + (1 if each.ndim == 2 else each.shape[1])
            vectors[:, start:end] = each.reshape(len(each), end - start, -1)
            start = end
            if each.ndim == 2:
                outputs[:, first : first + each.shape[1]] = each
                first += each.shape[1]
        work.xp.copyto(turned, vectors.swapaxes(1, 2))
        work.kernels.matmul(vectors, turned, products)
        below, _ = _places(start)
        work.kernels.take_columns(products.reshape(len(products), -1), below, outputs[:, first:])

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any
    ) -> None:
        vectors, turned, products = (work.buffers[name] for name in ("vectors", "turned", "products"))
        count = vectors.shape[1]
        first = output_gradient.shape[1] - count * (count - 1) // 2
        flat = products.reshape(len(products), -1)
        work.kernels.take_columns(output_gradient, first + _places(count)[1], flat)
        flat[:, :: count + 1] = 0
        found = turned.reshape(vectors.shape)
        work.kernels.matmul(products, vectors, found)
        start = first = 0
        for each, gradient in zip(inputs, input_gradient, strict=True):
            end = start + (1 if each.ndim == 2 else each.shape[1])
            if gradient is not None:
                work.xp.copyto(gradient, found[:, start:end].reshape(gradient.shape))
            if each.ndim == 2:
                if gradient is not None:
                    gradient += output_gradient[:, first : first + each.shape[1]]
                first += each.shape[1]
            start = end


def _count(input_shapes: tuple[Shape, ...]) -> int:
    """Return the number of vectors."""
    return sum(1 if len(shape) == 1 else shape[0] for shape in input_shapes)


@cache
def _places(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places of a matrix's strict lower triangle in the flattened matrix, and its elements' in the triangle.

    The latter make a symmetric matrix, with 0 on the diagonal.
    """
    rows, columns = np.tril_indices(count, -1)
    places = np.zeros((count, count), np.int64)
    places[rows, columns] = places[columns, rows] = np.arange(rows.size)
    return rows * count + columns, places.reshape(-1)
