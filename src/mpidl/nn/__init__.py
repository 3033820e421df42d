"""Models: layers, activations, losses, and the protocol of a user's own model."""

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.adaptation import adapt
from mpidl.nn.groups import Group
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers import LAYERS
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
from mpidl.nn.losses import LOSSES, Loss, MeanSquaredError, OneVsAllLogistic, Regularisation, SoftmaxCrossEntropy
from mpidl.nn.model import CompleteModel, Model
from mpidl.nn.network import Network, from_config

__all__ = [
    "ACTIVATIONS",
    "INITIALISERS",
    "LAYERS",
    "LOSSES",
    "Activation",
    "Add",
    "AveragePool2d",
    "BatchNormalisation",
    "Columns",
    "CompleteModel",
    "Concatenate",
    "Conv2d",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "Group",
    "Interaction",
    "L2Pool2d",
    "Layer",
    "LayerNormalisation",
    "LocalContrastNormalisation",
    "LocallyConnected2d",
    "Loss",
    "MaxPool2d",
    "MeanSquaredError",
    "Model",
    "Network",
    "OneVsAllLogistic",
    "Regularisation",
    "SoftmaxCrossEntropy",
    "SparseEmbedding",
    "adapt",
    "from_config",
]
