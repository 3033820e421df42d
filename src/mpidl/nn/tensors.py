"""The tensors of a network's layers in flat vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from mpidl.nn.graph import Graph
from mpidl.nn.initialisers import draw
from mpidl.nn.layers.layer import Layer
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range


class Tensors:
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
    def parameters(self) -> Any:
        """The flat vector (layout.size,), or another one that has replaced it, of which the layers have views."""
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
