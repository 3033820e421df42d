"""Small modules of the kinds that people build with PyTorch, and plain loops to compare with."""

from zoo import gradients, layers, parameters, sequences, state  # noqa: F401
from zoo.cases import ZOO
from zoo.loops import differences

__all__ = ["ZOO", "differences"]
