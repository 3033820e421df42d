"""Embedding whose rows are those of a table: on the servers, and not among the network's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from mpidl.data.ragged import Ragged
from mpidl.nn.kernels.cpu import bags
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.schema import Count, NonNegative, whole
from mpidl.tables.lookups import TableSpec


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
            bags.maximise(rows, found.places, own, results, work.buffers["largest"].reshape(results.shape))
        else:
            bags.add_up(rows, found.places, own, self.mode == "mean", results)

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
            bags.backprop_maximise(gradient, work.buffers["largest"].reshape(gradient.shape), rows)
        else:
            ends = work.buffers["ends"].reshape(-1)
            bags.backprop_add_up(gradient, found.places, ends, self.mode == "mean", rows)
        found.gradient = rows
