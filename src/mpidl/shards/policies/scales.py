"""How much a push counts, by its staleness."""

from __future__ import annotations

from collections.abc import Callable

Scale = Callable[[int], float]


def unscaled(staleness: int) -> float:
    """Count every push in full."""
    return 1.0


def inverse(staleness: int) -> float:
    """Count a push 1 / max(staleness, 1) (Zhang, Gupta, Lian, Liu 2016, equation 6)."""
    return 1.0 / max(staleness, 1)


def inverse_plus_one(staleness: int) -> float:
    """Count a push 1 / (staleness + 1) (DynSGD: Hermans 2017; Jiang, Cui, Zhang, Yu 2017)."""
    return 1.0 / (staleness + 1)
