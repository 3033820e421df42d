"""Initialisers of weight tensors.

Each one takes a NumPy generator, the tensor's shape and an array (n,) of float32 or float64, which it overwrites:
consecutive elements of the flattened tensor. The last two axes of a shape are (inputs, outputs). The axes before them,
such as a convolution's height and width, multiply both fans. A tensor is drawn in blocks, each with its own generator,
so that only the blocks of the required part are drawn.

Sources: Glorot and Bengio 2010 (Understanding the difficulty of training deep feedforward neural networks),
equation 16; He et al. 2015 (Delving deep into rectifiers), equation 10; LeCun et al. 1998 (Efficient
backprop), equation 16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt

import numpy as np

from mpidl.parameters.ranges import Box, Range, boxes

Shape = tuple[int, ...]
Initialiser = Callable[[np.random.Generator, Shape, np.ndarray], None]

#: Elements of a block.
BLOCK = 1 << 16


def draw(
    shape: Shape,
    box: Box,
    seed: Sequence[int],
    initialise: Callable[[np.random.Generator, np.ndarray], None],
    values: np.ndarray,
) -> None:
    """Overwrite an array with a box of a tensor's initial values, in the memory of one more block.

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor.
    box : Box
        The part to draw.
    seed : sequence of int
        Seed of the tensor's generators, to which a block's number is appended.
    initialise : callable
        Overwrites a block, an array (n,), given a generator.
    values : array (*box.shape)
    """
    whole, size = Box.whole(shape), prod(shape)
    corner = Box(tuple(Range(each.stop - 1, each.stop) for each in box.ranges))
    first, last = box.offset(whole), corner.offset(whole)
    memory = np.empty(min(size, BLOCK), values.dtype)
    for number in range(first // BLOCK, last // BLOCK + 1):
        start, stop = number * BLOCK, min((number + 1) * BLOCK, size)
        shared = [(part, place, part.intersect(box)) for part, place in boxes(shape, start, stop)]
        if not any(common for *_, common in shared):
            continue
        block = memory[: stop - start]
        initialise(np.random.default_rng([*seed, number]), block)
        for part, place, common in shared:
            if common is not None:
                own = block[slice(*place)].reshape(part.shape)
                values[common.slices(box)] = own[common.slices(part)]


def fans(shape: Shape) -> tuple[int, int]:
    """Return the number of inputs of an output, and of outputs of an input."""
    *window, inputs, outputs = shape
    return prod(window) * inputs, prod(window) * outputs


def _uniform(generator: np.random.Generator, values: np.ndarray, variance: float) -> None:
    limit = sqrt(3 * variance)
    generator.random(dtype=values.dtype, out=values)
    values *= 2 * limit
    values -= limit


def _normal(generator: np.random.Generator, values: np.ndarray, variance: float) -> None:
    generator.standard_normal(dtype=values.dtype, out=values)
    values *= sqrt(variance)


def _zeros(generator: np.random.Generator, shape: Shape, values: np.ndarray) -> None:
    values.fill(0)


def _of_variance(
    distribution: Callable[[np.random.Generator, np.ndarray, float], None], variance: Callable[[int, int], float]
) -> Initialiser:
    """Return an initialiser with this distribution, whose variance depends on the fans."""
    return lambda generator, shape, values: distribution(generator, values, variance(*fans(shape)))


VARIANCES: dict[str, Callable[[int, int], float]] = {
    "glorot": lambda inputs, outputs: 2 / (inputs + outputs),
    "he": lambda inputs, outputs: 2 / inputs,
    "lecun": lambda inputs, outputs: 1 / inputs,
}

INITIALISERS: dict[str, Initialiser] = {
    f"{source}_{name}": _of_variance(distribution, variance)
    for source, variance in VARIANCES.items()
    for name, distribution in (("uniform", _uniform), ("normal", _normal))
} | {"zeros": _zeros}
