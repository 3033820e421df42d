"""Layers, one per file, registered by their type in a configuration."""

from mpidl.nn.layers.activation import Activation
from mpidl.nn.layers.add import Add
from mpidl.nn.layers.average_pool2d import AveragePool2d
from mpidl.nn.layers.batch_normalisation import BatchNormalisation
from mpidl.nn.layers.concatenate import Concatenate
from mpidl.nn.layers.conv2d import Conv2d
from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.dropout import Dropout
from mpidl.nn.layers.embedding import Embedding
from mpidl.nn.layers.flatten import Flatten
from mpidl.nn.layers.l2_pool2d import L2Pool2d
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.layer_normalisation import LayerNormalisation
from mpidl.nn.layers.local_contrast_normalisation import LocalContrastNormalisation
from mpidl.nn.layers.locally_connected2d import LocallyConnected2d
from mpidl.nn.layers.max_pool2d import MaxPool2d

LAYERS: dict[str, type[Layer]] = {
    layer.type: layer
    for layer in (
        Activation,
        Add,
        AveragePool2d,
        BatchNormalisation,
        Concatenate,
        Conv2d,
        Dense,
        Dropout,
        Embedding,
        Flatten,
        L2Pool2d,
        LayerNormalisation,
        LocalContrastNormalisation,
        LocallyConnected2d,
        MaxPool2d,
    )
}

__all__ = [
    "LAYERS",
    "Activation",
    "Add",
    "AveragePool2d",
    "BatchNormalisation",
    "Concatenate",
    "Conv2d",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "L2Pool2d",
    "Layer",
    "LayerNormalisation",
    "LocalContrastNormalisation",
    "LocallyConnected2d",
    "MaxPool2d",
]
