"""Momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpidl.rules.rule import Fraction, Positive, Rule


@dataclass(frozen=True)
class Momentum(Rule):
    """Classical momentum: ``v = momentum * v + g; w -= rate * v``.

    The velocity doesn't include the rate, as in PyTorch, so that a change of the rate acts at once.

    Parameters
    ----------
    rate
        Learning rate.
    momentum
        Fraction of the velocity that is kept.

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl, G. Hinton (2013), On the importance of initialization and momentum in
    deep learning, equations (1) and (2), whose velocity is -rate times this one.
    """

    name: ClassVar[str] = "momentum"
    states: ClassVar[tuple[str, ...]] = ("velocity",)

    rate: Positive = 0.01
    momentum: Fraction = 0.9

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        return rate, self.momentum

    @staticmethod
    def scalar(w: float, v: float, g: float, rate: float, momentum: float) -> tuple[float, ...]:
        v = momentum * v + g
        return w - rate * v, v
