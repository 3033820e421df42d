"""Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar

from msgspec import Meta

from mpidl.rules.adam import Adam


@dataclass(frozen=True)
class Adamw(Adam):
    """AdamW: Adam with each step reducing the parameters by the fraction ``rate * weight_decay``.

    Parameters
    ----------
    rate
        Learning rate, the paper's alpha.
    beta1, beta2
        Decay rates of the first and the second moment.
    epsilon
        Added to the root of the corrected second moment.
    weight_decay
        Weight decay per unit of rate, as in PyTorch.

    References
    ----------
    I. Loshchilov, F. Hutter (2019), Decoupled weight decay regularization, algorithm 2; its lambda is
    ``rate * weight_decay``.
    """

    name: ClassVar[str] = "adamw"

    weight_decay: Annotated[float, Meta(ge=0)] = 0.01

    def coefficients(self, step: int, rate: float) -> tuple[float, ...]:
        return *super().coefficients(step, rate), 1 - rate * self.weight_decay

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
