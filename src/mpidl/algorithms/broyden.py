"""BFGS and the self-scaled Broyden method: the approximation of the inverse Hessian, whole, in rows on the shards."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any

import numpy as np

from mpidl.algorithms.coordination import Operate
from mpidl.algorithms.curvature import DIRECTION, GRADIENT, PREVIOUS, ROUNDING, Operating
from mpidl.shards.matrix import Gather, Identity, Product, RankUpdate, whole
from mpidl.shards.vectors import Combine

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
        """RankUpdate the matrix by a step, unless the curvature along it isn't positive."""
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
