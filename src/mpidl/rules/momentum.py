"""Gradient descent, with and without momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpidl.rules.rule import Rule
from mpidl.schema import Fraction, Positive


@dataclass(frozen=True)
class Sgd(Rule):
    """Stochastic gradient descent: ``w -= rate * g``.

    References
    ----------
    H. Robbins, S. Monro (1951), A stochastic approximation method.
    """

    name: ClassVar[str] = "sgd"

    rate: Positive = 0.01

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        return (rate * weight,)

    @staticmethod
    def scalar(w: float, g: float, rate: float) -> tuple[float, ...]:
        return (w - rate * g,)


@dataclass(frozen=True)
class Momentum(Rule):
    """Classical momentum: ``v = momentum * v + g; w -= rate * v``.

    The velocity doesn't include the rate, as in PyTorch, so that a change of the rate acts at once.

    Parameters
    ----------
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

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        return rate, self.momentum, weight

    @staticmethod
    def scalar(w: float, v: float, g: float, rate: float, momentum: float, weight: float) -> tuple[float, ...]:
        v = momentum * v + weight * g
        return w - rate * v, v


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Nesterov's momentum: ``v = momentum * v + g; w -= rate * (g + momentum * v)``.

    The parameters are those of the look-ahead point, where the gradient is taken, as in PyTorch.

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl, G. Hinton (2013), On the importance of initialization and momentum in
    deep learning, equations (3) and (4), rewritten for the look-ahead point theta + mu * v; their velocity is
    -rate times this one.
    """

    name: ClassVar[str] = "nesterov"

    @staticmethod
    def scalar(w: float, v: float, g: float, rate: float, momentum: float, weight: float) -> tuple[float, ...]:
        weighted = weight * g
        v = momentum * v + weighted
        return w - rate * (weighted + momentum * v), v
