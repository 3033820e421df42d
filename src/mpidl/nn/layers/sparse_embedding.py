"""Embedding whose rows are those of a table: on the servers, and not among the network's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.workspace import Shape, Workspace
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
        Length of a row. The outputs have the inputs' shape with this axis appended.
    rows
        Ids are in [0, rows); "any": any int64.
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
    initialiser: Literal["normal", "uniform"] = "normal"
    scale: NonNegative = 1.0
    table: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rows, str):
            object.__setattr__(self, "rows", whole(self.rows, "rows"))

    def spec(self, name: str) -> TableSpec:
        """Return what the layer, of this name, says of its table."""
        rows = None if isinstance(self.rows, str) else int(self.rows)
        return TableSpec(self.table or name, self.dimension, rows, self.initialiser == "normal", self.scale)

    def output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.dimension)

    def ids(self, inputs: Any) -> Any:
        """Return the ids that `forward` looks up, in their order."""
        return inputs

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        assert work.look_up is not None
        found = work.found = work.look_up(self.ids(inputs))
        work.kernels.take_rows(found.rows, found.places, outputs.reshape(-1, self.dimension))

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        assert input_gradient is None, "the network's inputs have no gradient"

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        assert work.found is not None
        work.found.add(output_gradient.reshape(-1, self.dimension))
