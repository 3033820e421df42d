"""The history of L-BFGS, and its direction, from inner products alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The vector of the gradient on the shards.
GRADIENT = "gradient"


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


class History:
    """The pairs of steps and gradient differences, each in a slot, and all inner products of them and the gradient."""

    def __init__(self, most: int, order: list[int]) -> None:
        self._most, self.order = most, order
        self._products: dict[tuple[str, str], float] = {}

    @property
    def free(self) -> int:
        """A slot that no pair of the history uses."""
        return next(slot for slot in range(self._most + 1) if slot not in self.order)

    def names(self) -> list[str]:
        """Return the names of the basis vectors, the oldest pair first."""
        return [f"{letter}{slot}" for letter in "sy" for slot in self.order] + [GRADIENT]

    def push(self, slot: int) -> None:
        """Add the pair of a slot to the history, and remove the oldest pair if there are too many."""
        self.order.append(slot)
        del self.order[: -self._most]

    def missing(self, fresh: list[str]) -> tuple[tuple[str, str], ...]:
        """Return the pairs of basis vectors whose inner product is unknown; `fresh` vectors have changed."""
        names = self.names()
        for key in [key for key in self._products if set(key) & set(fresh)]:
            del self._products[key]
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i:]]
        return tuple(pair for pair in pairs if pair not in self._products)

    def learn(self, pairs: tuple[tuple[str, str], ...], values: list[float]) -> None:
        """Keep the inner products of pairs of vectors."""
        self._products.update(zip(pairs, values, strict=True))

    def gram(self) -> np.ndarray:
        """Return the matrix of all inner products."""
        names = self.names()
        matrix = np.empty((len(names), len(names)))
        for i, a in enumerate(names):
            for j, b in enumerate(names[i:], i):
                matrix[i, j] = matrix[j, i] = self._products[a, b]
        return matrix
