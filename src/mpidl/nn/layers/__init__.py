"""Layers, registered by their type in a configuration."""

from mpidl.nn.layers.conv2d import Conv2d
from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.embedding import Embedding, SparseEmbedding
from mpidl.nn.layers.joining import Add, Concatenate, Interaction
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.local_contrast_normalisation import LocalContrastNormalisation
from mpidl.nn.layers.locally_connected2d import LocallyConnected2d
from mpidl.nn.layers.normalisation import BatchNormalisation, LayerNormalisation
from mpidl.nn.layers.parameterless import Activation, Columns, Dropout, Flatten
from mpidl.nn.layers.pooling import AveragePool2d, L2Pool2d, MaxPool2d

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
