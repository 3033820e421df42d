"""Regularisation: an L2 penalty on the weights, and gradient clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any

from msgspec import Meta

from mpidl.parameters.ranges import Range
from mpidl.rules import Sgd
from mpidl.schema import Checked

#: Adds a multiple of one vector to another.
ADDING = Sgd()


@dataclass(frozen=True)
class Regularisation(Checked):
    """L2 penalty and gradient clipping, keys of the ``[model]`` section.

    Attributes
    ----------
    l2 : float
        Adds l2 / 2 times the sum of the squared weights to the loss. Only tensors named ``weight`` count, no biases.
    clip : float, optional
        Largest Euclidean norm of the gradient, which is scaled down if its norm is larger.
    """

    l2: Annotated[float, Meta(ge=0)] = 0.0
    clip: Annotated[float, Meta(gt=0)] | None = None

    def apply(self, weights: Sequence[Range], trained: Sequence[Range], parameters: Any, gradient: Any) -> float:
        """Change the gradient in place, and return what is added to the loss.

        Parameters
        ----------
        weights, trained : list of Range
            Ranges of the penalised parameters, and of those whose gradient counts for the norm.
        parameters, gradient : array (size,)
            NumPy or CuPy vectors; the gradient is changed.
        """
        loss = 0.0
        for part in weights if self.l2 else ():
            own = parameters[slice(*part)]
            ADDING.update(gradient[slice(*part)], (), own, 1, -self.l2)
            loss += self.l2 / 2 * float(own @ own)
        if self.clip is not None:
            parts = [gradient[slice(*part)] for part in trained]
            norm = sqrt(sum(float(part @ part) for part in parts))
            if norm > self.clip:
                for part in parts:
                    part *= self.clip / norm
        return loss
