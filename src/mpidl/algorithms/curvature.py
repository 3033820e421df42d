"""What a quasi-Newton method remembers of the objective's curvature, by which it chooses directions."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from math import inf, sqrt
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpidl.algorithms.coordination import Operate
from mpidl.shards.matrix import Gather, Identity, Product, RankUpdate, whole
from mpidl.shards.vectors import Combine, Dot, Operation

T = TypeVar("T")
#: Operations on the shards, and what they are for.
Operating = Generator[Operate, Any, T]

#: Vectors on the shards: the gradient, that before a step or what takes its place, and the direction of the step.
GRADIENT, PREVIOUS, DIRECTION = "gradient", "previous", "direction"
#: A curvature s'y below this fraction of y'y is rounding error, like a decrease below this fraction of the objective.
ROUNDING = float(np.finfo(np.float64).eps)


class Curvature(Protocol):
    """The curvature along the steps so far."""

    @property
    def known(self) -> bool:
        """Whether there is any."""
        ...

    def gradient_norm(self) -> Operating[float]:
        """Return the Euclidean norm of the gradient, which is the one that `direction` takes."""
        ...

    def direction(self) -> tuple[Operation, ...]:
        """Return the operations that set the direction to -H gradient, H being the inverse Hessian's approximation."""
        ...

    def learn(self, step: float, gradient: str) -> Operating[None]:
        """Take up the change of a gradient, from `PREVIOUS` to the named vector, over `step` times the direction."""
        ...

    def forget(self) -> Operating[None]:
        """Begin anew: H = I until the next step."""
        ...

    def state(self) -> dict[str, Any]:
        """Return scalars from which to resume with the vectors and matrices on the shards."""
        ...


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


class LimitedMemory:
    """The curvature in the last `most` pairs of a step and a change of the gradient, which resumes from `state`.

    Each pair has a slot: two vectors on the shards, s and y. Only inner products of these and the gradient are known
    here.
    """

    def __init__(self, most: int, state: Mapping[str, Any]) -> None:
        self._most, self._order = most, list(state.get("order", ()))
        self._products: dict[tuple[str, str], float] = {}

    @staticmethod
    def vectors(most: int) -> tuple[str, ...]:
        """Return the names of its vectors on the shards."""
        return tuple(f"{letter}{slot}" for letter in "sy" for slot in range(most + 1))

    @property
    def known(self) -> bool:
        return bool(self._order)

    def _basis(self) -> list[str]:
        """Return the names of the basis vectors, the oldest pair first."""
        return [f"{letter}{slot}" for letter in "sy" for slot in self._order] + [GRADIENT]

    def gradient_norm(self) -> Operating[float]:
        names = self._basis()
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i:]]
        missing = tuple(pair for pair in pairs if pair not in self._products)
        self._products.update(zip(missing, (yield Operate((Dot(missing),))), strict=True))
        return sqrt(self._products[GRADIENT, GRADIENT])

    def direction(self) -> tuple[Combine, ...]:
        names = self._basis()
        gram = np.empty((len(names), len(names)))
        for i, a in enumerate(names):
            for j, b in enumerate(names[i:], i):
                gram[i, j] = gram[j, i] = self._products[a, b]
        return (Combine(DIRECTION, tuple(zip(direction(gram).tolist(), names, strict=True))),)

    def learn(self, step: float, gradient: str) -> Operating[None]:
        """Add the pair of a step to the history, unless its curvature isn't positive; a full one loses the oldest."""
        slot = next(slot for slot in range(self._most + 1) if slot not in self._order)
        s, y = f"s{slot}", f"y{slot}"
        operations = (
            Combine(s, ((step, DIRECTION),)),
            Combine(y, ((1.0, gradient), (-1.0, PREVIOUS))),
            Dot(((s, y), (y, y))),
        )
        curvature, square = yield Operate(operations)
        if curvature > ROUNDING * square:
            self._order.append(slot)
            del self._order[: -self._most]
        self._change(GRADIENT, s, y)

    def forget(self) -> Operating[None]:
        yield from ()
        self._order.clear()
        self._change(GRADIENT)

    def _change(self, *vectors: str) -> None:
        """Forget the inner products of vectors that change."""
        self._products = {pair: value for pair, value in self._products.items() if not set(pair) & set(vectors)}

    def state(self) -> dict[str, Any]:
        return {"order": list(self._order)}


#: The matrix on the shards, and the vector of its product with a change of the gradient.
INVERSE, PRODUCT = "inverse", "product"


def self_scaling(b: float, h: float, size: int) -> tuple[float, float]:
    """Return the factors phi and tau of a self-scaled Broyden update; BFGS has 1 and 1.

    Parameters
    ----------
    b, h : float
        s'Bs / s'y and y'Hy / s'y, where B is the inverse of H.
    size : int
        Number of parameters.

    Returns
    -------
    phi, tau : float
        The update is H <- (H - Hy y'H / y'Hy + phi y'Hy v v') / tau + s s' / s'y, where v = s / s'y - Hy / y'Hy.

    References
    ----------
    M. Al-Baali, H. Khalfan (2005), A wide interval for efficient self-scaling quasi-Newton algorithms; as in
    J. F. Urbán, P. Stefanou, J. A. Pons (2025), Unveiling the optimization process of physics informed neural networks,
    equations 13 to 23, whose code calls it SSBroyden2, and in E. Kiyani et al. (2025), arXiv:2501.16371.
    """
    a = max(0.0, b * h - 1)  # 0 only if s and Hy are parallel
    low = min(1.0, h * (1 - sqrt(a / (1 + a))))
    lowest = (low - 1) / a if a else (-inf if low < 1 else 0.0)
    theta = max(lowest, min(1 / low, (1 - b) / b))
    sigma = 1 + a * theta
    # With the exponent, the determinant of B changes as that of BFGS does.
    root, most = sigma ** (-1 / max(1, size - 1)), min(1.0, 1 / b)
    # For 0 < theta, which is at most 1, the papers have most * min(root, 1 / theta): the same, as root <= 1 <= sigma.
    return (1 - theta) / sigma, min(most * root, sigma)


class InverseHessian:
    """The curvature in an approximation of the inverse Hessian, which resumes from `state`; scaled or, for BFGS, not.

    Of each vector in an update the coordinator gathers all elements, and sends them to all servers. It has them in
    float64, and computes with them as one rank does, however many servers there are.
    """

    VECTORS, MATRICES = (PRODUCT,), (INVERSE,)

    def __init__(self, scaled: bool, state: Mapping[str, Any]) -> None:
        self._scaled, self._updates = scaled, int(state.get("updates", 0))
        self._gradient = np.empty(0)

    @property
    def known(self) -> bool:
        return self._updates > 0

    def gradient_norm(self) -> Operating[float]:
        (pieces,) = yield Operate((Gather(GRADIENT),))
        self._gradient = whole(pieces)
        return float(np.linalg.norm(self._gradient))

    def direction(self) -> tuple[Product, ...]:
        return (Product(DIRECTION, INVERSE, -self._gradient),)

    def learn(self, step: float, gradient: str) -> Operating[None]:
        """Update the matrix by a step, unless the curvature along it isn't positive."""
        change = Combine(PREVIOUS, ((1.0, gradient), (-1.0, PREVIOUS)))
        s, y = map(whole, (yield Operate((change, Gather(DIRECTION), Gather(PREVIOUS)))))
        s *= step
        curvature = float(s @ y)
        if curvature <= ROUNDING * float(y @ y):
            return
        (pieces,) = yield Operate((Product(PRODUCT, INVERSE, y), Gather(PRODUCT)))
        product = whole(pieces)
        square = float(y @ product)
        # The direction was -H times the gradient before the step: Bs is -step times that.
        b, h = -step * float(s @ self._gradient) / curvature, square / curvature
        phi, tau = self_scaling(b, h, s.size) if self._scaled else (1.0, 1.0)
        mixed = -phi / curvature / tau
        weights = np.array([[(phi * h / tau + 1) / curvature, mixed], [mixed, (phi - 1) / square / tau]])
        yield Operate((RankUpdate(INVERSE, 1 / tau, np.stack([s, product], axis=1), weights),))
        self._updates += 1

    def forget(self) -> Operating[None]:
        yield Operate((Identity(INVERSE),))
        self._updates = 0

    def state(self) -> dict[str, Any]:
        return {"updates": self._updates}
