"""Embeddings: a trainable vector for each word, among the network's parameters or in a table on the servers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.kernels.cpu import matrices
from mpidl.nn.layers.layer import Layer, Piece, divided_by
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range
from mpidl.schema import Count, NonNegative, choose, whole
from mpidl.tables.lookups import TableSpec


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


@dataclass(frozen=True)
class SparseEmbedding(Layer):
    """The rows of a table that the network's inputs, whole numbers, select: ``type = "embedding"``, ``sparse = true``.

    It takes the inputs themselves, or some of them by `Columns`. The table is on the servers, and a batch moves the
    rows of its distinct ids only.

    Attributes
    ----------
    dimension
        Length of a row. The outputs have the inputs' shape with this axis appended or, with a `mode`, in place of the
        last one.
    rows
        Ids are in [0, rows); "any": any int64.
    mode
        What is computed of the rows of a bag: "sum", "mean" or "max". A bag is one of a `Ragged`, or the ids along the
        last axis; that of an empty bag is zero.
    padding
        An id that stands for none: it is left out of its bag, and its row is zero.
    initialiser
        Distribution of a row's first values: "normal" with mean 0, or "uniform" around 0.
    scale
        Standard deviation of the normal distribution, or the bound of the uniform one.
    table
        Name of the table; by default the layer's. Layers of the same table share its rows.
    """

    type: ClassVar[str] = "embedding"
    takes_integers: ClassVar[bool] = True

    dimension: Count
    rows: Count | float | Literal["any"] = "any"
    mode: Literal["sum", "mean", "max"] | None = None
    padding: int | None = None
    initialiser: Literal["normal", "uniform"] = "normal"
    scale: NonNegative = 1.0
    table: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rows, str):
            object.__setattr__(self, "rows", whole(self.rows, "rows"))

    @property
    def pools(self) -> bool:
        """Whether an output is of a bag, if only of one id or, where that is the padding, of none."""
        return self.mode is not None or self.padding is not None

    def spec(self, name: str) -> TableSpec:
        """Return what the layer, of this name, says of its table."""
        rows = None if isinstance(self.rows, str) else int(self.rows)
        return TableSpec(self.table or name, self.dimension, rows, self.initialiser == "normal", self.scale)

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*(input_shape if self.mode is None else input_shape[:-1]), self.dimension)

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        outputs = self.output_shape(input_shape)
        found = {"ends": Buffer(outputs[:-1], "int64")} if self.pools else {}
        return found | ({"largest": Buffer(outputs, "int32")} if self.mode == "max" else {})

    def bags(self, inputs: Any) -> tuple[Any, Any]:
        """Return the ids that `forward` looks up, in their order, and the end of each bag among them, if it pools."""
        if not self.pools:
            return inputs, None
        if isinstance(inputs, Ragged):
            ids, ends = inputs.values, inputs.offsets[1:]
        else:
            size = 1 if self.mode is None or inputs.ndim == 1 else inputs.shape[-1]
            ids, ends = inputs.reshape(-1), np.arange(size, inputs.size + 1, size)
        if self.padding is None:
            return ids, ends
        kept = ids != self.padding
        before = np.zeros(kept.size + 1, np.int64)
        np.cumsum(kept, out=before[1:])
        return ids[kept], before[ends]

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        assert work.look_up is not None
        ids, ends = self.bags(inputs)
        found = work.found = work.look_up(ids)
        rows, results = found.rows, outputs.reshape(-1, self.dimension)
        if not self.pools:
            work.kernels.take_rows(rows, found.places, results)
            return
        own = work.buffers["ends"].reshape(-1)
        own[...] = ends
        if self.mode == "max":
            matrices.maximise(rows, found.places, own, results, work.buffers["largest"].reshape(results.shape))
        else:
            matrices.add_up(rows, found.places, own, self.mode == "mean", results)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        assert input_gradient is None, "the network's inputs have no gradient"

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        found = work.found
        assert found is not None
        gradient = output_gradient.reshape(-1, self.dimension)
        if not self.pools:
            found.add(gradient)
            return
        rows = np.zeros_like(found.rows)
        if self.mode == "max":
            matrices.backprop_maximise(gradient, work.buffers["largest"].reshape(gradient.shape), rows)
        else:
            ends = work.buffers["ends"].reshape(-1)
            matrices.backprop_add_up(gradient, found.places, ends, self.mode == "mean", rows)
        found.gradient = rows
