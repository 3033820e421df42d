"""Which layers take whose outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpidl.errors import UsageError, nearest
from mpidl.nn.layers.layer import Layer, Shape

#: The name of the network's own inputs.
INPUTS = "inputs"


class Graph:
    """Layers in an order in which each comes after those whose outputs it takes.

    Values are numbered: 0 is the network's inputs, i + 1 the outputs of layer i.

    Parameters
    ----------
    layers
    input_shape
        Of one sample.

    Attributes
    ----------
    names : list of str
        The layers' own, or their index and type: ``"0-dense"``.
    sources : list of tuple of int
        The values that each layer takes.
    shapes : list of tuple of int
        Of each value, for one sample.
    shared : list of bool
        For each value, whether several layers take it.

    Raises
    ------
    UsageError
        Two layers share a name, one takes what isn't there, or can't take what it is given.
    """

    def __init__(self, layers: Sequence[Layer], input_shape: Shape) -> None:
        self.layers = tuple(layers)
        self.names = layer_names(layers)
        self.sources = [self._sources(index) for index in range(len(layers))]
        self.shapes = [input_shape]
        for index in range(len(layers)):
            self.shapes.append(self._output_shape(index))
        takers = [sum(value in sources for sources in self.sources) for value in range(len(self.shapes))]
        for index, count in enumerate(takers[1:-1]):
            if not count:
                raise UsageError(f"model.layer[{index}]: nobody takes the outputs of {self.names[index]!r}")
        self.shared = [count > 1 for count in takers]

    def input_shapes(self, index: int) -> list[Shape]:
        """Return the shapes of what a layer takes."""
        return [self.shapes[value] for value in self.sources[index]]

    def inputs(self, index: int, values: Sequence[Any]) -> Any:
        """Return what a layer takes out of `values`, one for each value: a list of them if it joins several."""
        taken = [values[value] for value in self.sources[index]]
        return taken if self.layers[index].joins else taken[0]

    def _sources(self, index: int) -> tuple[int, ...]:
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
                raise UsageError(f"{where}: no layer {name!r} before this one{nearest(name, known)}")
        if len(set(layer.inputs)) < len(layer.inputs):
            raise UsageError(f"{where}: a name twice, expected different ones")
        return tuple(known.index(name) for name in layer.inputs)

    def _output_shape(self, index: int) -> Shape:
        shapes = self.input_shapes(index)
        for shape in shapes:
            if not all(extent >= 1 for extent in shape):
                raise UsageError(f"model.layer[{index}]: inputs of shape {shape} have no elements")
        try:
            return self.layers[index].output_shape(*shapes)
        except UsageError as error:
            raise UsageError(f"model.layer[{index}]: {error}") from None


def layer_names(layers: Sequence[Layer]) -> list[str]:
    """Return each layer's own name, or its index and type: ``"0-dense"``.

    Raises
    ------
    UsageError
        If two layers share a name, or a name has a slash, which separates layer and tensor.
    """
    names: list[str] = []
    for index, layer in enumerate(layers):
        name = layer.name or f"{index}-{layer.type}"
        if "/" in name:
            raise UsageError(f"model.layer[{index}].name: expected a name without '/', found {name!r}")
        if name in names or name == INPUTS:
            whose = f"layer {names.index(name)} is" if name in names else "the network's inputs are"
            raise UsageError(f"model.layer[{index}].name: {whose} named {name!r} too")
        names.append(name)
    return names
