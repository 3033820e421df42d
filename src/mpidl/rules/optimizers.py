"""Gradient descent, with and without momentum, and rules whose step adapts to each element's gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from mpidl.rules.rule import Rule
from mpidl.schema import Fraction, NonNegative, Positive


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

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        return (rate * weight,)

    @staticmethod
    def scalar(w: float, sum: float, g: float, rate: float) -> tuple[float, ...]:
        sum = sum + g * g
        return w - (0.0 if sum == 0.0 else rate * g / sqrt(sum)), sum


@dataclass(frozen=True)
class Rmsprop(Rule):
    """RMSprop: ``s = decay * s + (1 - decay) * g * g; w -= rate * g / (sqrt(s) + epsilon)``.

    Parameters
    ----------
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

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        return rate * weight, self.decay, 1 - self.decay, self.epsilon

    @staticmethod
    def scalar(
        w: float, s: float, g: float, rate: float, decay: float, gain: float, epsilon: float
    ) -> tuple[float, ...]:
        s = decay * s + gain * (g * g)
        return w - rate * g / (sqrt(s) + epsilon), s


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
        Added to the root of the corrected second moment; PyTorch's `SparseAdam` adds it before the correction.

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

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        correction = sqrt(1 - self.beta2**step)
        corrected_rate = rate * correction / (1 - self.beta1**step)
        gain1, gain2 = (1 - self.beta1) * weight, 1 - self.beta2
        return corrected_rate, self.beta1, gain1, self.beta2, gain2, self.epsilon * correction

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


@dataclass(frozen=True)
class Adamw(Adam):
    """AdamW: Adam with each step reducing the parameters by the fraction ``rate * weight_decay``.

    Parameters
    ----------
    weight_decay
        Weight decay per unit of rate, as in PyTorch.

    References
    ----------
    I. Loshchilov, F. Hutter (2019), Decoupled weight decay regularization, algorithm 2; its lambda is
    ``rate * weight_decay``.
    """

    name: ClassVar[str] = "adamw"

    weight_decay: NonNegative = 0.01

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        return *super().coefficients(step, rate, weight), 1 - rate * weight * self.weight_decay

    @staticmethod
    def scalar(  # type: ignore[override]
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
        kept: float,
    ) -> tuple[float, ...]:
        m = beta1 * m + gain1 * g
        v = beta2 * v + gain2 * (g * g)
        return kept * w - rate * m / (sqrt(v) + epsilon), m, v
