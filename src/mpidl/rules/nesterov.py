"""Nesterov's momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpidl.rules.rule import Fraction, Positive, Rule


@dataclass(frozen=True)
class Nesterov(Rule):
    """Nesterov's momentum: ``v = momentum * v + g; w -= rate * (g + momentum * v)``.

    The parameters are those of the look-ahead point, where the gradient is taken, as in PyTorch.

    Parameters
    ----------
    rate
        Learning rate.
    momentum
        Fraction of the velocity that is kept.

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl, G. Hinton (2013), On the importance of initialization and momentum in
    deep learning, equations (3) and (4), rewritten for the look-ahead point theta + mu * v; their velocity is
    -rate times this one.
    """

    name: ClassVar[str] = "nesterov"
    states: ClassVar[tuple[str, ...]] = ("velocity",)

    rate: Positive = 0.01
    momentum: Fraction = 0.9

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        return rate, self.momentum

    @staticmethod
    def scalar(w: float, v: float, g: float, rate: float, momentum: float) -> tuple[float, ...]:
        v = momentum * v + g
        return w - rate * (g + momentum * v), v
