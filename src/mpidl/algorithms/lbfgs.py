"""The direction of L-BFGS, from inner products alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def direction(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of the direction -H g in the basis s_0, ..., s_(k-1), y_0, ..., y_(k-1), g.

    This is the two-loop recursion in the coordinates of that basis, where every inner product is a product of
    coefficients with the Gram matrix (W. Chen, Z. Wang, J. Zhou 2014, Large-scale L-BFGS using MapReduce, algorithm 3).
    H_0 is s'y / y'y of the newest pair, or 1 if there is none.

    Parameters
    ----------
    gram : array (2k + 1, 2k + 1) of float64
        Inner products of the basis vectors, the oldest pair first; s_i'y_i > 0.

    Returns
    -------
    array (2k + 1,) of float64
        The coefficients.
    """
    k = len(gram) // 2
    curvature = np.diagonal(gram[:k, k : 2 * k])
    coefficients = np.zeros(2 * k + 1)
    coefficients[-1] = -1
    alpha = np.zeros(k)
    for i in reversed(range(k)):
        alpha[i] = coefficients @ gram[:, i] / curvature[i]
        coefficients[k + i] -= alpha[i]
    if k:
        coefficients *= curvature[-1] / gram[2 * k - 1, 2 * k - 1]
    for i in range(k):
        beta = coefficients @ gram[:, k + i] / curvature[i]
        coefficients[i] += alpha[i] - beta
    return coefficients
