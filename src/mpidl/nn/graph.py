"""The graph of a network: its layers, the values between them, and the layers' tensors and tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mpidl.errors import UsageError, nearest, quoted
from mpidl.nn.initialisers import draw
from mpidl.nn.layers.embedding import SparseEmbedding
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.parameterless import Columns
from mpidl.nn.layers.workspace import Shape
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Box, Range, share
from mpidl.schema import LARGEST
from mpidl.tables.lookups import TableSpec, Wanted

#: The name of the network's own inputs.
INPUTS = "inputs"


class Graph:
    """Layers in topological order: each after those whose outputs it takes.

    Values are numbered: value 0 is the network's inputs, value i + 1 the outputs of layer i.

    Attributes
    ----------
    names : list of str
        The layers' names, by default index and type: ``"0-dense"``.
    operands : list of tuple of int
        The values that each layer takes.
    shapes : list of tuple of int
        The shape of each value, for one sample.

    Raises
    ------
    UsageError
        Two layers have the same name, or a layer takes unknown or unsuitable values.
    """

    def __init__(self, layers: Sequence[Layer], input_shape: Shape) -> None:
        self.layers = tuple(layers)
        self.names = layer_names(layers)
        self.operands = [self._operands(index) for index in range(len(layers))]
        self.shapes = [input_shape]
        for index in range(len(layers)):
            self.shapes.append(self._output_shape(index))
        taken = {value for operands in self.operands for value in operands}
        for index, name in enumerate(self.names[:-1]):
            if index + 1 not in taken:
                raise UsageError(f"model.layer[{index}]: no layer takes the outputs of {quoted(name)}")

    def input_shapes(self, index: int) -> list[Shape]:
        """Return the shapes of the values that a layer takes."""
        return [self.shapes[value] for value in self.operands[index]]

    def selected(self, value: int) -> Box | None:
        """Return the part of the network's inputs that a value is, unchanged; None if it is anything else."""
        if value == 0:
            return Box.whole(self.shapes[0])
        layer = self.layers[value - 1]
        part = self.selected(self.operands[value - 1][0]) if isinstance(layer, Columns) else None
        return layer.selected(part) if isinstance(layer, Columns) and part is not None else None

    def _operands(self, index: int) -> tuple[int, ...]:
        layer, where = self.layers[index], f"model.layer[{index}].inputs"
        if not layer.inputs:
            if layer.joins:
                raise UsageError(f"{where}: missing, {layer.type} takes the outputs of several layers")
            return (index,)
        if len(layer.inputs) > 1 and not layer.joins:
            raise UsageError(f"{where}: {len(layer.inputs)} names, {layer.type} takes one")
        known = [INPUTS, *self.names[:index]]
        for name in layer.inputs:
            if name not in known:
                raise UsageError(f"{where}: no layer {quoted(name)} before this one{nearest(name, known)}")
        if len(set(layer.inputs)) < len(layer.inputs):
            raise UsageError(f"{where}: a name occurs twice, expected distinct names")
        return tuple(known.index(name) for name in layer.inputs)

    def _output_shape(self, index: int) -> Shape:
        shapes = self.input_shapes(index)
        for shape in shapes:
            if not all(extent >= 1 for extent in shape):
                raise UsageError(f"model.layer[{index}]: inputs of shape {shape} have no elements")
        try:
            found = self.layers[index].output_shape(*shapes)
        except UsageError as error:
            raise UsageError(f"model.layer[{index}]: {error}") from None
        if prod(found) > LARGEST:
            raise UsageError(f"model.layer[{index}]: outputs of shape {found} have more than 2**63 - 1 elements")
        return found


def layer_names(layers: Sequence[Layer]) -> list[str]:
    """Return each layer's name, by default its index and type: ``"0-dense"``; UsageError for duplicate or bad names."""
    names: list[str] = []
    for index, layer in enumerate(layers):
        name = layer.name or f"{index}-{layer.type}"
        if "/" in name or not name.isprintable():
            expected = "a name without '/' and control characters"
            raise UsageError(f"model.layer[{index}].name: expected {expected}, found {quoted(name)}")
        if name in names or name == INPUTS:
            whose = f"of layer {names.index(name)}" if name in names else "of the network's inputs"
            raise UsageError(f"model.layer[{index}].name: {quoted(name)} is the name {whose}, expected a unique one")
        names.append(name)
    return names


class Value(NamedTuple):
    """An input or output (samples, *shape) of layers.

    Attributes
    ----------
    shape : tuple of int
        Shape of one sample.
    share : (int, int), optional
        Number and count, if it has only a share of the batch: the part with this number, of parts as equal as possible.
    inputs : Box, optional
        The part of a sample, for a part of the network's inputs, which has no gradient.
    as_is : bool
        Whether inputs, such as ids, keep their dtype. Other arrays have the network's.
    """

    shape: Shape
    share: tuple[int, int] | None = None
    inputs: Box | None = None
    as_is: bool = False

    def samples(self, of: int) -> Range:
        """Return its samples of a batch with a number of samples."""
        return Range(0, of) if self.share is None else share(of, *self.share)


class Node(NamedTuple):
    """A layer, and the values that it takes and computes.

    Attributes
    ----------
    operands, output : tuple of int, int
        Indices of the values that it takes, and of the one that it computes.
    first : tuple of bool
        For each operand, whether this layer is the first in the backward pass to compute a gradient, to which those of
        others are added.
    """

    layer: Layer
    operands: tuple[int, ...]
    output: int
    first: tuple[bool, ...]


def first_takers(operands: Sequence[Sequence[int]]) -> list[tuple[bool, ...]]:
    """Return for each node's operands whether no later node takes the same value: `Node.first`.

    Examples
    --------
    >>> first_takers([(0,), (1,), (1, 2)])
    [(True,), (False,), (True, True)]
    """
    seen: set[int] = set()
    found = []
    for each in reversed(operands):
        found.append(tuple(value not in seen for value in each))
        seen.update(each)
    return found[::-1]


class LayerTensors:
    """Parameters and gradients, each a flat vector that is allocated at its first use, and each layer's views of them.

    Parameters
    ----------
    seed : int
        Seed of the initial parameters.
    xp : module
        NumPy or CuPy: the package of the vectors.

    Attributes
    ----------
    layout : Layout
        With names such as ``"0-dense/weight"``.
    statistics : list of Range
        Ranges of parameters that update rules don't change.
    starts : list of int
        The index of each layer's first parameter.
    weights : list of list of Range
        For each layer, the range of its ``weight``, if any.
    """

    def __init__(self, layers: Sequence[Layer], graph: Graph, dtype: np.dtype, seed: int, xp: Any) -> None:
        self._layers = dict(zip(graph.names, layers, strict=True))
        self._dtype, self._seed, self._xp = dtype, seed, xp
        own = [layer.parameters(*graph.input_shapes(index)) for index, layer in enumerate(layers)]
        named = [(name, key, shape) for name, each in zip(graph.names, own, strict=True) for key, shape in each.items()]
        self.layout = Layout([(f"{name}/{key}", shape) for name, key, shape in named])
        self.statistics = [
            self.layout[f"{name}/{key}"].range for name, layer in self._layers.items() for key in layer.statistics
        ]
        self.starts = list(accumulate((sum(map(prod, each.values())) for each in own[:-1]), initial=0))
        weights = [f"{name}/weight" for name in graph.names]
        self.weights = [[self.layout[name].range] if name in self.layout.shapes else [] for name in weights]
        self._names, self._parameters = graph.names, None
        self._parameter_views: dict[str, dict[str, Any]] = {name: {} for name in graph.names}

    @property
    def allocated(self) -> bool:
        """Whether the parameters have been."""
        return self._parameters is not None

    @property
    def parameters(self) -> Any:
        """The flat vector (layout.size,), which may be replaced; the layers have views of it."""
        if self._parameters is None:
            self.parameters = self._xp.asarray(self.initial(Range(0, self.layout.size), self.layout))
        return self._parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._parameters = vector
        self._view(vector, self._parameter_views)

    @cached_property
    def gradient(self) -> Any:
        """The flat vector (layout.size,), not initialised."""
        return self._xp.empty(self.layout.size, self._dtype)

    @cached_property
    def _gradient_views(self) -> dict[str, dict[str, Any]]:
        return self._view(self.gradient, {name: {} for name in self._names})

    def _view(self, vector: Any, views: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for path, view in self.layout.views(vector).items():
            name, _, key = path.rpartition("/")
            views[name][key] = view
        return views

    def views(self, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a layer's parameters and gradients by their names; replacing `parameters` updates these dicts."""
        name = self._names[index]
        return self._parameter_views[name], self._gradient_views[name]

    def initial(self, whole: Range, layout: Layout) -> np.ndarray:
        """Return the initial values of a range of the flat vector of a layout."""
        if not 0 <= whole.start <= whole.stop <= layout.size:
            raise ValueError(f"parameters {tuple(whole)} of {layout.size}")
        ordinals = {name: ordinal for ordinal, name in enumerate(self.layout.shapes)}
        values = np.empty(whole.size, self._dtype)
        for place in layout.within(whole):
            name, _, key = place.name.rpartition("/")
            shape = self.layout.shapes[place.name]
            own = values[slice(*place.range.shift(-whole.start))].reshape(place.shape)
            initialise = partial(self._layers[name].initial, key, shape)
            draw(shape, place.box, [self._seed, ordinals[place.name]], initialise, own)
        return values


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


def part_of(inputs: Any, box: Box, samples: Range | None = None) -> Any:
    """Return a view of a part of some samples, or of all, of the inputs of a batch."""
    rows = slice(None) if samples is None else slice(*samples)
    return inputs[rows, *(slice(*each) for each in box.ranges)] if box.ranges else inputs[rows]
