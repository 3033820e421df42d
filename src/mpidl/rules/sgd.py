"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpidl.rules.rule import Positive, Rule


@dataclass(frozen=True)
class Sgd(Rule):
    """Stochastic gradient descent: ``w -= rate * g``.

    Parameters
    ----------
    rate
        Learning rate.

    References
    ----------
    H. Robbins, S. Monro (1951), A stochastic approximation method.
    """

    name: ClassVar[str] = "sgd"

    rate: Positive = 0.01

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        return (rate,)

    @staticmethod
    def scalar(w: float, g: float, rate: float) -> tuple[float, ...]:
        return (w - rate * g,)
