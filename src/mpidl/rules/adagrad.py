"""Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from mpidl.rules.rule import Positive, Rule


@dataclass(frozen=True)
class Adagrad(Rule):
    """DistBelief's Adagrad: ``sum += g * g; w -= rate * g / sqrt(sum)``.

    The sum includes the current gradient and there is no epsilon, so the first step is ``rate * sign(g)``.
    Elements whose sum is zero don't change.

    Parameters
    ----------
    rate
        Learning rate, the paper's gamma.

    References
    ----------
    J. Dean et al. (2012), Large scale distributed deep networks, section 4.1.
    J. Duchi, E. Hazan, Y. Singer (2011), Adaptive subgradient methods for online learning and stochastic
    optimization.
    """

    name: ClassVar[str] = "adagrad"
    states: ClassVar[tuple[str, ...]] = ("sum",)

    rate: Positive = 0.01

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        return (rate,)

    @staticmethod
    def scalar(w: float, sum: float, g: float, rate: float) -> tuple[float, ...]:
        sum = sum + g * g
        return w - (0.0 if sum == 0.0 else rate * g / sqrt(sum)), sum
