"""Initialisers of weight tensors.

Each one takes a NumPy generator, the tensor's shape and its dtype ("float32" or "float64"), and returns a NumPy
array of that shape. The last two axes of a shape are (inputs, outputs). The axes before them, such as a
convolution's height and width, multiply both fans.

Sources: Glorot and Bengio 2010 (Understanding the difficulty of training deep feedforward neural networks),
equation 16; He et al. 2015 (Delving deep into rectifiers), equation 10; LeCun et al. 1998 (Efficient
backprop), equation 16.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt

import numpy as np

Shape = tuple[int, ...]
Initialiser = Callable[[np.random.Generator, Shape, str], np.ndarray]


def fans(shape: Shape) -> tuple[int, int]:
    """Return the number of inputs that reach one output, and of outputs that one input reaches."""
    *window, inputs, outputs = shape
    return prod(window) * inputs, prod(window) * outputs


def _uniform(generator: np.random.Generator, shape: Shape, dtype: str, variance: float) -> np.ndarray:
    limit = sqrt(3 * variance)
    values: np.ndarray = generator.random(shape, dtype=dtype)  # type: ignore[call-overload]
    values *= 2 * limit
    values -= limit
    return values


def _normal(generator: np.random.Generator, shape: Shape, dtype: str, variance: float) -> np.ndarray:
    values: np.ndarray = generator.standard_normal(shape, dtype=dtype)  # type: ignore[call-overload]
    values *= sqrt(variance)
    return values


def glorot_uniform(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Uniform with variance 2 / (inputs + outputs)."""
    return _uniform(generator, shape, dtype, 2 / sum(fans(shape)))


def glorot_normal(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Normal with variance 2 / (inputs + outputs)."""
    return _normal(generator, shape, dtype, 2 / sum(fans(shape)))


def he_uniform(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Uniform with variance 2 / inputs."""
    return _uniform(generator, shape, dtype, 2 / fans(shape)[0])


def he_normal(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Normal with variance 2 / inputs."""
    return _normal(generator, shape, dtype, 2 / fans(shape)[0])


def lecun_uniform(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Uniform with variance 1 / inputs."""
    return _uniform(generator, shape, dtype, 1 / fans(shape)[0])


def lecun_normal(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Normal with variance 1 / inputs."""
    return _normal(generator, shape, dtype, 1 / fans(shape)[0])


def zeros(generator: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """All zero."""
    return np.zeros(shape, dtype)


INITIALISERS: dict[str, Initialiser] = {
    initialiser.__name__: initialiser
    for initialiser in (
        glorot_uniform,
        glorot_normal,
        he_uniform,
        he_normal,
        lecun_uniform,
        lecun_normal,
        zeros,
    )
}
