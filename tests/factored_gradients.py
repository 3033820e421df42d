"""Gradients of weights that have factors."""

import numpy as np

from mpidl.wire import Factors


def factored_gradient(matrices, size, samples, seed):
    """Return a gradient whose elements are integers, and the factors of each weight by its first element."""
    random = np.random.default_rng(seed)
    gradient, factors = random.integers(-9, 9, size).astype(np.float64), {}
    for each in matrices:
        own = (random.integers(-9, 9, (samples, n)).astype(np.float64) for n in (each.rows, each.columns))
        factors[each.start] = found = Factors(samples, *own)
        gradient[slice(*each.range)] = (found.inputs.T @ found.output_gradient).reshape(-1)
    return gradient, factors
