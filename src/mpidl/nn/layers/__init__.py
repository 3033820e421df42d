"""Layers, registered by their type in a configuration."""

from mpidl.nn.layers.columns import Columns
from mpidl.nn.layers.conv2d import Conv2d
from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.embedding import Embedding
from mpidl.nn.layers.interaction import Interaction
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.local_contrast_normalisation import LocalContrastNormalisation
from mpidl.nn.layers.locally_connected2d import LocallyConnected2d
from mpidl.nn.layers.normalisation import BatchNormalisation, LayerNormalisation
from mpidl.nn.layers.parameterless import Activation, Add, Concatenate, Dropout, Flatten
from mpidl.nn.layers.pooling import AveragePool2d, L2Pool2d, MaxPool2d
from mpidl.nn.layers.sparse_embedding import SparseEmbedding

LAYERS: dict[str, type[Layer]] = {
    layer.type: layer
    for layer in (
        Activation,
        Add,
        AveragePool2d,
        BatchNormalisation,
        Columns,
        Concatenate,
        Conv2d,
        Dense,
        Dropout,
        Embedding,
        Flatten,
        Interaction,
        L2Pool2d,
        LayerNormalisation,
        LocalContrastNormalisation,
        LocallyConnected2d,
        MaxPool2d,
    )
}

#: Those of sections with ``sparse = true``.
SPARSE: dict[str, type[Layer]] = {SparseEmbedding.type: SparseEmbedding}

__all__ = [
    "LAYERS",
    "SPARSE",
    "Activation",
    "Add",
    "AveragePool2d",
    "BatchNormalisation",
    "Columns",
    "Concatenate",
    "Conv2d",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "Interaction",
    "L2Pool2d",
    "Layer",
    "LayerNormalisation",
    "LocalContrastNormalisation",
    "LocallyConnected2d",
    "MaxPool2d",
    "SparseEmbedding",
]
