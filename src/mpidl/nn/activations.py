"""Elementwise functions at the end of a layer, and their derivatives, in place.

Each derivative is written through the function's own outputs, so that a layer keeps no values from before
its activation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple


class Activation(NamedTuple):
    """A function and its derivative.

    Attributes
    ----------
    apply
        ``apply(xp, values)`` replaces `values` (any shape, float32 or float64) by the function of them.
    chain
        ``chain(xp, outputs, gradient)`` multiplies `gradient`, the loss's gradient with respect to
        `outputs`, by the function's derivative where it gave `outputs`. Overwrites `outputs` with scratch
        values.
    """

    apply: Callable[[Any, Any], None]
    chain: Callable[[Any, Any, Any], None]


def _keep(xp: Any, *arrays: Any) -> None:
    pass


def _relu(xp: Any, values: Any) -> None:
    # NumPy vectorises clip, but not maximum with a scalar, which takes three times as long.
    xp.clip(values, 0, inf, out=values)


def _chain_relu(xp: Any, outputs: Any, gradient: Any) -> None:
    xp.greater(outputs, 0, out=outputs, casting="unsafe")
    xp.multiply(gradient, outputs, out=gradient)


def sigmoid(xp: Any, values: Any) -> None:
    """Replace each value z by 1 / (1 + exp(-z)), as (1 + tanh(z / 2)) / 2, which can't overflow."""
    xp.multiply(values, 0.5, out=values)
    xp.tanh(values, out=values)
    xp.multiply(values, 0.5, out=values)
    xp.add(values, 0.5, out=values)


def _chain_sigmoid(xp: Any, outputs: Any, gradient: Any) -> None:
    xp.multiply(gradient, outputs, out=gradient)
    xp.subtract(1, outputs, out=outputs)
    xp.multiply(gradient, outputs, out=gradient)


def _tanh(xp: Any, values: Any) -> None:
    xp.tanh(values, out=values)


def _chain_tanh(xp: Any, outputs: Any, gradient: Any) -> None:
    xp.multiply(outputs, outputs, out=outputs)
    xp.subtract(1, outputs, out=outputs)
    xp.multiply(gradient, outputs, out=gradient)


ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(_keep, _keep),
    "relu": Activation(_relu, _chain_relu),
    "sigmoid": Activation(sigmoid, _chain_sigmoid),
    "tanh": Activation(_tanh, _chain_tanh),
}
