"""What is done to the loss and its gradient besides: a penalty on large weights, and a bound on the norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any

from msgspec import Meta

from mpidl.parameters.ranges import Range
from mpidl.rules import Sgd


@dataclass(frozen=True)
class Regularisation:
    """Settings of ``[model]``.

    Attributes
    ----------
    l2 : float
        Adds l2 / 2 times the sum of the squared weights to the loss; biases and the like are left out.
    clip : float, optional
        The gradient is scaled down to this Euclidean norm if it is longer.
    """

    l2: Annotated[float, Meta(ge=0)] = 0.0
    clip: Annotated[float, Meta(gt=0)] | None = None

    def apply(self, weights: Sequence[Range], trained: Sequence[Range], parameters: Any, gradient: Any) -> float:
        """Change the gradient, and return what the loss grows by.

        Parameters
        ----------
        weights, trained : list of Range
            What is penalised, and what belongs to the norm.
        parameters, gradient : array (size,)
            NumPy or CuPy; the gradient is changed in place.
        """
        loss, adding = 0.0, Sgd()
        for part in weights if self.l2 else ():
            own = parameters[slice(*part)]
            adding.update(gradient[slice(*part)], (), own, 1, -self.l2)
            loss += self.l2 / 2 * float(own @ own)
        if self.clip is not None:
            parts = [gradient[slice(*part)] for part in trained]
            norm = sqrt(sum(float(part @ part) for part in parts))
            if norm > self.clip:
                for part in parts:
                    part *= self.clip / norm
        return loss
