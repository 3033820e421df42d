"""Embedding: a trainable vector for each word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from mpidl.errors import UsageError
from mpidl.nn.cuts import divided_by
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Count, choose


@dataclass(frozen=True)
class Embedding(Layer):
    """The rows of ``weight`` (vocabulary, units) selected by the inputs, whole numbers in [0, vocabulary).

    Attributes
    ----------
    vocabulary
        Number of rows; at most 2**24 for ids that come as float32, which represents larger ones inexactly.
    units
        Length of a row. The outputs have the inputs' shape with this axis appended.
    initialiser
        A name in `INITIALISERS`.
    """

    type: ClassVar[str] = "embedding"
    cuts: ClassVar[tuple[str, ...]] = ("rows", "units")
    takes_integers: ClassVar[bool] = True

    vocabulary: Count
    units: Count
    initialiser: str = "lecun_normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(INITIALISERS, "initialiser", self.initialiser)

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.units)

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        return {"weight": (self.vocabulary, self.units)}

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        units, weight = box.ranges[-1], Box((Range(0, self.vocabulary), box.ranges[-1]))
        return Piece(replace(self, units=units.size), (Box(box.ranges[:-1]),), box, {"weight": weight})

    def pieces(self, how: str, number: int, parts: int, *input_shapes: Shape) -> list[Piece]:
        """Cut by rows of the weight, so that a rank computes zeros for words of other ranks."""
        (shape,) = input_shapes
        outputs = Box.whole(self.output_shape(shape))
        if how == "samples":
            return super().pieces(how, number, parts, shape)
        if how == "units":
            units = divided_by("units", self.units, parts)[number]
            return [self.piece(Box((*outputs.ranges[:-1], units)), shape)]
        own = divided_by("rows of the vocabulary", self.vocabulary, parts)[number]
        weight = Box((own, Range(0, self.units)))
        return [Piece(EmbeddingRows(**vars(self), rows=own), (Box.whole(shape),), outputs, {"weight": weight})]

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, values: np.ndarray) -> None:
        # The fan-in is 1, whatever the vocabulary: a single row reaches an output.
        INITIALISERS[self.initialiser](generator, shape, values)
        values *= sqrt(shape[0])

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        return {"rounded": Buffer(input_shape), "ids": Buffer(input_shape, "int64")}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        ids = work.buffers["ids"]
        if inputs.dtype.kind in "iu":
            work.xp.copyto(ids, inputs, casting="unsafe")
        else:
            exact = 2 << work.xp.finfo(inputs.dtype).nmant
            if self.vocabulary > exact:
                raise UsageError(f"vocabulary: {self.vocabulary}, ids of {inputs.dtype} are exact up to {exact}")
            work.xp.rint(inputs, out=work.buffers["rounded"])
            work.xp.copyto(ids, work.buffers["rounded"], casting="unsafe")
        for extreme in (int(ids.min()), int(ids.max())):
            if not 0 <= extreme < self.vocabulary:
                raise UsageError(f"an id of {extreme}, the embedding has a vocabulary of {self.vocabulary}")
        self.find_rows(work, ids)
        work.kernels.take_rows(work.parameters["weight"], ids.reshape(-1), outputs.reshape(-1, self.units))

    def find_rows(self, work: Workspace, ids: Any) -> None:
        """Replace ids, shape (n, *input_shape), by indices of rows of the weight."""

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is not None:
            input_gradient.fill(0)

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        gradient = work.gradients["weight"]
        gradient.fill(0)
        rows = output_gradient.reshape(-1, self.units)
        work.kernels.add_to_rows(gradient, work.buffers["ids"].reshape(-1), rows)


@dataclass(frozen=True, kw_only=True)
class EmbeddingRows(Embedding):
    """The piece of an embedding that has some of its rows; the outputs of other ids are zero.

    Attributes
    ----------
    rows
        The ids whose rows are in the weight.
    """

    rows: Range

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        return {"weight": (self.rows.size, self.units)}

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        return super().buffers(input_shape) | {"others": Buffer(input_shape, "bool")}

    def find_rows(self, work: Workspace, ids: Any) -> None:
        """Mark ids of other rows, and replace them by 0."""
        others = work.buffers["others"]
        ids -= self.rows.start
        # Ids below the first row are larger than all others as unsigned numbers.
        work.xp.greater_equal(ids.view("uint64"), self.rows.size, out=others)
        work.xp.copyto(ids, 0, where=others)

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        super().forward(work, inputs, outputs)
        self._leave_out(work, outputs)

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        self._leave_out(work, output_gradient)
        super().backward_weights(work, inputs, output_gradient)

    @staticmethod
    def _leave_out(work: Workspace, values: Any) -> None:
        """Set the values of ids of other rows to zero."""
        work.xp.copyto(values, 0, where=work.buffers["others"][..., None])
