"""RMSprop."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from mpidl.rules.rule import Fraction, Positive, Rule


@dataclass(frozen=True)
class Rmsprop(Rule):
    """RMSprop: ``s = decay * s + (1 - decay) * g * g; w -= rate * g / (sqrt(s) + epsilon)``.

    Parameters
    ----------
    rate
        Learning rate.
    decay
        Fraction of the mean square that is kept.
    epsilon
        Added outside the root, as in PyTorch; the source has none.

    References
    ----------
    T. Tieleman, G. Hinton (2012), Neural networks for machine learning, lecture 6.5.
    """

    name: ClassVar[str] = "rmsprop"
    states: ClassVar[tuple[str, ...]] = ("mean_square",)

    rate: Positive = 0.01
    decay: Fraction = 0.99
    epsilon: Positive = 1e-8

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        return rate, self.decay, 1 - self.decay, self.epsilon

    @staticmethod
    def scalar(
        w: float, s: float, g: float, rate: float, decay: float, gain: float, epsilon: float
    ) -> tuple[float, ...]:
        s = decay * s + gain * (g * g)
        return w - rate * g / (sqrt(s) + epsilon), s
