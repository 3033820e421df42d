"""Layers, one a file, by the name that a configuration gives as their type."""

from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.layer import Layer

LAYERS: dict[str, type[Layer]] = {layer.type: layer for layer in (Dense,)}

__all__ = ["LAYERS", "Dense", "Layer"]
