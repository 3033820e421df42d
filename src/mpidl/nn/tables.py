"""The tables of a network's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpidl.errors import UsageError, quoted
from mpidl.nn.graph import INPUTS, Graph
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.sparse_embedding import SparseEmbedding
from mpidl.nn.workspaces import part_of
from mpidl.parameters.ranges import Box
from mpidl.tables.lookups import TableSpec, Wanted


class LayerTables:
    """The tables that layers look rows up in, in the order of the layers.

    Attributes
    ----------
    tables : list of TableSpec
    numbers : dict of int to int
        The number of the table of each layer that has one, by the layer's index.
    takes_bags : bool
        Whether the network's inputs may be a `Ragged`.

    Raises
    ------
    UsageError
        A layer of a table doesn't take inputs of the network, or differs from another layer of its table.
    """

    def __init__(self, layers: Sequence[Layer], graph: Graph) -> None:
        self.tables: list[TableSpec] = []
        self.numbers: dict[int, int] = {}
        self.takes_bags = all(
            isinstance(layer, SparseEmbedding) and layer.mode is not None
            for layer, operands in zip(layers, graph.operands, strict=True)
            if 0 in operands
        )
        self._lookups: list[tuple[int, SparseEmbedding, Box]] = []
        first: list[int] = []
        for index, layer in enumerate(layers):
            if not isinstance(layer, SparseEmbedding):
                continue
            spec, names = layer.spec(graph.names[index]), [each.name for each in self.tables]
            if spec.name not in names:
                self.tables.append(spec)
                first.append(index)
                names.append(spec.name)
            number = self.numbers[index] = names.index(spec.name)
            if spec != self.tables[number]:
                raise UsageError(
                    f"model.layer[{index}].table: {quoted(spec.name)} is that of model.layer[{first[number]}], "
                    "expected the same dimension, rows, initialiser and scale"
                )
            part = graph.selected(graph.operands[index][0])
            if part is None:
                taken = quoted([INPUTS, *graph.names][graph.operands[index][0]])
                raise UsageError(
                    f"model.layer[{index}]: a sparse embedding of outputs of {taken}, expected the network's inputs, "
                    "or some of them by a layer of columns"
                )
            self._lookups.append((number, layer, part))

    def wanted(self, inputs: Any) -> list[Wanted]:
        """Return the lookups for a batch's inputs, (n, *input_shape); UsageError for ids that a table doesn't have."""
        return [
            Wanted(number, self.tables[number].checked(layer.bags(part_of(inputs, part))[0]))
            for number, layer, part in self._lookups
        ]
