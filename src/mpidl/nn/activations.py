"""Activation functions and their derivatives, in place.

Most derivatives are computed from the function's outputs, so that a layer needn't keep its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpidl.nn import kernels


class ActivationFunction(NamedTuple):
    """An activation function and its derivative.

    Attributes
    ----------
    apply
        ``apply(xp, values)`` applies the function to `values` (any shape, float32 or float64).
    backprop
        ``backprop(xp, outputs, gradient)`` multiplies `gradient`, the gradient of the loss with respect to
        `outputs`, by the function's derivative. It may overwrite `outputs`.
    needs_inputs
        Whether `backprop` takes the function's inputs instead of its outputs.
    mixes
        Whether a value depends on the others along the last axis.
    """

    apply: Callable[[Any, Any], None]
    backprop: Callable[[Any, Any, Any], None]
    needs_inputs: bool = False
    mixes: bool = False


def _identity(xp: Any, *arrays: Any) -> None:
    pass


def sigmoid(xp: Any, values: Any) -> None:
    """Replace each value z by 1 / (1 + exp(-z)), as (1 + tanh(z / 2)) / 2, which can't overflow."""
    xp.multiply(values, 0.5, out=values)
    xp.tanh(values, out=values)
    xp.multiply(values, 0.5, out=values)
    xp.add(values, 0.5, out=values)


def _tanh(xp: Any, values: Any) -> None:
    xp.tanh(values, out=values)


def _softmax(xp: Any, values: Any) -> None:
    values -= values.max(axis=-1, keepdims=True)
    xp.exp(values, out=values)
    values /= values.sum(axis=-1, keepdims=True)


def _backprop_softmax(xp: Any, outputs: Any, gradient: Any) -> None:
    gradient -= xp.einsum("...i,...i->...", gradient, outputs)[..., None]
    gradient *= outputs


def _kernel(name: str) -> Callable[..., None]:
    return lambda xp, *arrays: getattr(kernels.of(xp), name)(*arrays)


ACTIVATIONS: dict[str, ActivationFunction] = {
    "identity": ActivationFunction(_identity, _identity),
    "relu": ActivationFunction(_kernel("relu"), _kernel("backprop_relu")),
    "leaky_relu": ActivationFunction(_kernel("leaky_relu"), _kernel("backprop_leaky_relu")),
    "gelu": ActivationFunction(_kernel("gelu"), _kernel("backprop_gelu"), needs_inputs=True),
    "sigmoid": ActivationFunction(sigmoid, _kernel("backprop_sigmoid")),
    "tanh": ActivationFunction(_tanh, _kernel("backprop_tanh")),
    "softmax": ActivationFunction(_softmax, _backprop_softmax, mixes=True),
}
