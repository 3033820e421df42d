"""Elementwise functions at the end of a layer, and their derivatives, in place.

Most derivatives are written through the function's own outputs, so that a layer keeps no values from before
its activation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpidl.nn import kernels


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
    of_inputs
        Whether `chain` needs what the function was applied to, in place of what it gave.
    """

    apply: Callable[[Any, Any], None]
    chain: Callable[[Any, Any, Any], None]
    of_inputs: bool = False


def _keep(xp: Any, *arrays: Any) -> None:
    pass


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


def _softmax(xp: Any, values: Any) -> None:
    values -= values.max(axis=-1, keepdims=True)
    xp.exp(values, out=values)
    values /= values.sum(axis=-1, keepdims=True)


def _chain_softmax(xp: Any, outputs: Any, gradient: Any) -> None:
    gradient -= xp.einsum("...i,...i->...", gradient, outputs)[..., None]
    gradient *= outputs


def _kernel(name: str) -> Callable[..., None]:
    return lambda xp, *arrays: getattr(kernels.of(xp), name)(*arrays)


ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(_keep, _keep),
    "relu": Activation(_kernel("relu"), _kernel("chain_relu")),
    "leaky_relu": Activation(_kernel("leaky_relu"), _kernel("chain_leaky_relu")),
    "gelu": Activation(_kernel("gelu"), _kernel("chain_gelu"), of_inputs=True),
    "sigmoid": Activation(sigmoid, _chain_sigmoid),
    "tanh": Activation(_tanh, _chain_tanh),
    "softmax": Activation(_softmax, _chain_softmax),
}
