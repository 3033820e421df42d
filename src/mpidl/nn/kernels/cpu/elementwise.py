"""Activation functions and their derivatives, in place, for C-contiguous arrays of one shape; and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, exp, pi, sqrt
from typing import Any

import numpy as np

from mpidl.jit import jit
from mpidl.parameters.ranges import merged, strides

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


#: Numbers that are drawn at a time.
DRAWS = 1024
#: Axes of the parts of arrays that kernels take: samples, rows, columns and channels may each be cut.
AXES = 4

LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
FIRST_STEP, SECOND_STEP = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def dropout(
    inputs: Any,
    factors: Any,
    outputs: Any,
    rate: float,
    key: Sequence[int],
    first: int = 0,
    distances: Sequence[int] | None = None,
) -> None:
    """Overwrite `factors` with 0, at the given rate, or 1 / (1 - rate), and `outputs` with `inputs` times `factors`.

    Parameters
    ----------
    inputs, factors, outputs : array
        C-contiguous, of one shape and dtype.
    rate : float
        Share of zeros.
    key : sequence of int
        Four integers of 32 bits.
    first, distances : int, sequence of int
        Index of the first element in the whole array, and the distance of neighbours along each axis there. By default
        the array is whole.
    """
    shape, steps = axes_of(outputs.shape, distances)
    flat = [array.reshape(-1) for array in (inputs, factors, outputs)]
    _dropout(*flat, threshold_of(rate), 1 / (1 - rate), np.array(key, np.uint64), first, shape, steps)


def axes_of(shape: Sequence[int], distances: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the extents and the distances of `AXES` axes that visit the same elements, the last ones at distance 1."""
    axes = merged(shape, strides(shape) if distances is None else distances)
    axes = [(1, 0)] * (AXES - len(axes)) + axes
    return tuple(extent for extent, _ in axes), tuple(distance for _, distance in axes)


def threshold_of(rate: float) -> int:
    """Return the number of 32 bits below which a draw sets its element to 0."""
    return min(round(rate * 2**32), 2**32 - 1)


@jit
def draw(key, group, draws):  # type: ignore[no-untyped-def]
    """Overwrite `draws` with the numbers of the counters from `group` on."""
    for i in range(draws.size // 4):
        counter = np.uint64(group + i)
        a, b, c, d = counter & LOW, counter >> HALF, key[2], key[3]
        k, m = key[0], key[1]
        for _ in range(10):
            p, q = FIRST_FACTOR * a, SECOND_FACTOR * c
            a, b, c, d = (q >> HALF) ^ b ^ k, q & LOW, (p >> HALF) ^ d ^ m, p & LOW
            k, m = (k + FIRST_STEP) & LOW, (m + SECOND_STEP) & LOW
        draws[4 * i] = a
        draws[4 * i + 1] = b
        draws[4 * i + 2] = c
        draws[4 * i + 3] = d


@jit
def _dropout(inputs, factors, outputs, threshold, scale, key, first, shape, distances):  # type: ignore[no-untyped-def]
    """Work along the last axis, whose elements follow one another in the whole array."""
    zero, kept = outputs.dtype.type(0), outputs.dtype.type(scale)
    least = np.uint32(threshold)
    memory = np.empty(DRAWS + 8, np.uint32)
    length = shape[3]
    for row in range(shape[0] * shape[1] * shape[2]):
        place = first + row % shape[2] * distances[2]
        place += row // shape[2] % shape[1] * distances[1]
        place += row // shape[2] // shape[1] * distances[0]
        for start in range(0, length, DRAWS):
            count = min(DRAWS, length - start)
            skipped = (place + start) % 4
            draws = memory[: (skipped + count + 3) // 4 * 4]
            draw(key, (place + start) // 4, draws)
            at = row * length + start
            for i in range(count):
                factor = kept if draws[skipped + i] >= least else zero
                factors[at + i] = factor
                outputs[at + i] = inputs[at + i] * factor
