"""Activation functions and their derivatives, in place, for C-contiguous arrays of one shape."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, pi, sqrt
from typing import Any

from mpidl.jit import jit

#: Slope of leaky_relu for negative values.
LEAK = 0.01
ROOT_HALF, DENSITY = sqrt(0.5), 1 / sqrt(2 * pi)


def _flat(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a function of arrays of any shape that runs the compiled loop on flat views of them."""
    compiled = jit(loop)

    def apply(*arrays: Any) -> None:
        compiled(*[array.reshape(-1) for array in arrays])

    return apply


@_flat
def relu(values):  # type: ignore[no-untyped-def]
    """Replace each value by max(value, 0)."""
    zero = values.dtype.type(0)
    for i in range(values.size):
        values[i] = max(values[i], zero)


@_flat
def backprop_relu(outputs, gradient):  # type: ignore[no-untyped-def]
    """Multiply the gradient by the derivative of relu, given its outputs."""
    zero = outputs.dtype.type(0)
    for i in range(outputs.size):
        gradient[i] = gradient[i] if outputs[i] > zero else zero


@_flat
def leaky_relu(values):  # type: ignore[no-untyped-def]
    """Multiply each negative value by `LEAK`."""
    leak = values.dtype.type(LEAK)
    for i in range(values.size):
        values[i] = max(values[i], leak * values[i])


@_flat
def backprop_leaky_relu(outputs, gradient):  # type: ignore[no-untyped-def]
    """Multiply the gradient by the derivative of leaky_relu, given its outputs."""
    zero, leak = outputs.dtype.type(0), outputs.dtype.type(LEAK)
    for i in range(outputs.size):
        gradient[i] = gradient[i] if outputs[i] > zero else leak * gradient[i]


@_flat
def backprop_sigmoid(outputs, gradient):  # type: ignore[no-untyped-def]
    """Multiply the gradient by the derivative of the logistic function, given its outputs."""
    one = outputs.dtype.type(1)
    for i in range(outputs.size):
        gradient[i] *= outputs[i] * (one - outputs[i])


@_flat
def backprop_tanh(outputs, gradient):  # type: ignore[no-untyped-def]
    """Multiply the gradient by the derivative of tanh, given its outputs."""
    one = outputs.dtype.type(1)
    for i in range(outputs.size):
        gradient[i] *= one - outputs[i] * outputs[i]


@_flat
def gelu(values):  # type: ignore[no-untyped-def]
    """Replace each value z by z Phi(z), where Phi is the standard normal distribution function."""
    for i in range(values.size):
        z = values[i]
        values[i] = z * 0.5 * (1 + erf(z * ROOT_HALF))


@_flat
def backprop_gelu(inputs, gradient):  # type: ignore[no-untyped-def]
    """Multiply the gradient by the derivative of gelu, given its inputs."""
    for i in range(inputs.size):
        z = inputs[i]
        gradient[i] *= 0.5 * (1 + erf(z * ROOT_HALF)) + z * DENSITY * exp(-0.5 * z * z)
