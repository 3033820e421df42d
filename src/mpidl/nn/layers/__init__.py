"""Layers, one a file, by the name that a configuration gives as their type."""

from mpidl.nn.layers.activation import Activation
from mpidl.nn.layers.average_pool2d import AveragePool2d
from mpidl.nn.layers.conv2d import Conv2d
from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.l2_pool2d import L2Pool2d
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.local_contrast_normalisation import LocalContrastNormalisation
from mpidl.nn.layers.locally_connected2d import LocallyConnected2d
from mpidl.nn.layers.max_pool2d import MaxPool2d

LAYERS: dict[str, type[Layer]] = {
    layer.type: layer
    for layer in (
        Activation,
        AveragePool2d,
        Conv2d,
        Dense,
        L2Pool2d,
        LocalContrastNormalisation,
        LocallyConnected2d,
        MaxPool2d,
    )
}

__all__ = [
    "LAYERS",
    "Activation",
    "AveragePool2d",
    "Conv2d",
    "Dense",
    "L2Pool2d",
    "Layer",
    "LocalContrastNormalisation",
    "LocallyConnected2d",
    "MaxPool2d",
]
