"""Models: layers, activations, losses, and the protocol that a user's own model meets."""

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.build import from_config
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers import (
    LAYERS,
    Activation,
    AveragePool2d,
    Conv2d,
    Dense,
    L2Pool2d,
    Layer,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
)
from mpidl.nn.losses import LOSSES, Loss, MeanSquaredError, OneVsAllLogistic, SoftmaxCrossEntropy
from mpidl.nn.model import Model, layout_of
from mpidl.nn.network import Network, check

__all__ = [
    "ACTIVATIONS",
    "INITIALISERS",
    "LAYERS",
    "LOSSES",
    "Activation",
    "AveragePool2d",
    "Conv2d",
    "Dense",
    "L2Pool2d",
    "Layer",
    "LocalContrastNormalisation",
    "LocallyConnected2d",
    "Loss",
    "MaxPool2d",
    "MeanSquaredError",
    "Model",
    "Network",
    "OneVsAllLogistic",
    "SoftmaxCrossEntropy",
    "check",
    "from_config",
    "layout_of",
]
