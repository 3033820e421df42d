"""Models: layers, activations, losses, and the protocol of a user's own model."""

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.adaptation import adapt
from mpidl.nn.groups import Group
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers import (
    LAYERS,
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
    Layer,
    LayerNormalisation,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
    SparseEmbedding,
)
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
