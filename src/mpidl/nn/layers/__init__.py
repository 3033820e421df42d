"""Layers, one a file, by the name that a configuration gives as their type."""

from mpidl.nn.layers.activation import Activation
from mpidl.nn.layers.conv2d import Conv2d
from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.locally_connected2d import LocallyConnected2d

LAYERS: dict[str, type[Layer]] = {layer.type: layer for layer in (Activation, Conv2d, Dense, LocallyConnected2d)}

__all__ = ["LAYERS", "Activation", "Conv2d", "Dense", "Layer", "LocallyConnected2d"]
