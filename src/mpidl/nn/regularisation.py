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

    def penalise(self, weights: Sequence[Range], parameters: Any, gradient: Any) -> float:
        """Add the penalty's gradient in place, and return the penalty.

        Parameters
        ----------
        weights : list of Range
            Ranges of the penalised parameters.
        parameters, gradient : array (size,)
            NumPy or CuPy vectors.
        """
        loss = 0.0
        for part in weights if self.l2 else ():
            own = parameters[slice(*part)]
            ADDING.update(gradient[slice(*part)], (), own, 1, -self.l2)
            loss += self.l2 / 2 * float(own @ own)
        return loss

    def squared_norm(self, trained: Sequence[Range], gradient: Any) -> float:
        """Return the squared norm of the gradient in some ranges, 0 if nothing is clipped."""
        if self.clip is None:
            return 0.0
        parts = [gradient[slice(*part)] for part in trained]
        return sum(float(part @ part) for part in parts)

    def clip_norm(self, trained: Sequence[Range], gradient: Any, squared_norm: float) -> None:
        """Scale the gradient in some ranges down, in place, if its norm, of which they may be a part, is too large."""
        norm = sqrt(squared_norm)
        if self.clip is not None and norm > self.clip:
            for part in trained:
                own = gradient[slice(*part)]
                own *= self.clip / norm
