"""The factor of a push's rate as a function of its staleness."""

from __future__ import annotations

from collections.abc import Callable

Scale = Callable[[int], float]


def unscaled(staleness: int) -> float:
    """Return 1."""
    return 1.0


def inverse(staleness: int) -> float:
    """Return 1 / max(staleness, 1) (Zhang, Gupta, Lian, Liu 2016, equation 6)."""
    return 1.0 / max(staleness, 1)


def inverse_plus_one(staleness: int) -> float:
    """Return 1 / (staleness + 1) (DynSGD: Hermans 2017; Jiang, Cui, Zhang, Yu 2017)."""
    return 1.0 / (staleness + 1)
