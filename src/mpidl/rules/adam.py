"""Adam."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from mpidl.rules.rule import Fraction, Positive, Rule


@dataclass(frozen=True)
class Adam(Rule):
    """Adam, with bias correction.

    Parameters
    ----------
    rate
        Learning rate, the paper's alpha.
    beta1, beta2
        Decay rates of the first and the second moment.
    epsilon
        Added to the root of the corrected second moment.

    References
    ----------
    D. Kingma, J. Ba (2015), Adam: a method for stochastic optimization, algorithm 1. Bias is corrected in
    the coefficients, as described at the end of section 2, with epsilon-hat such that the result is the same.
    """

    name: ClassVar[str] = "adam"
    states: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    rate: Positive = 0.001
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        correction = sqrt(1 - self.beta2**step)
        corrected_rate = rate * correction / (1 - self.beta1**step)
        return (
            corrected_rate,
            self.beta1,
            1 - self.beta1,
            self.beta2,
            1 - self.beta2,
            self.epsilon * correction,
        )

    @staticmethod
    def scalar(
        w: float,
        m: float,
        v: float,
        g: float,
        rate: float,
        beta1: float,
        gain1: float,
        beta2: float,
        gain2: float,
        epsilon: float,
    ) -> tuple[float, ...]:
        m = beta1 * m + gain1 * g
        v = beta2 * v + gain2 * (g * g)
        return w - rate * m / (sqrt(v) + epsilon), m, v
