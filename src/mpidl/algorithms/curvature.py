"""What a quasi-Newton method remembers of the objective's curvature, by which it chooses directions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

import numpy as np

from mpidl.algorithms.coordination import Operate
from mpidl.shards.vectors import Operation

T = TypeVar("T")
#: Operations on the shards, and what they are for.
Operating = Generator[Operate, Any, T]

#: Vectors on the shards: the gradient, that before a step or what takes its place, and the direction of the step.
GRADIENT, PREVIOUS, DIRECTION = "gradient", "previous", "direction"
#: A curvature s'y below this fraction of y'y is rounding error, like a decrease below this fraction of the objective.
ROUNDING = float(np.finfo(np.float64).eps)


class Curvature(Protocol):
    """The curvature along the steps so far."""

    @property
    def known(self) -> bool:
        """Whether there is any."""
        ...

    def gradient_norm(self) -> Operating[float]:
        """Return the Euclidean norm of the gradient, which is the one that `direction` takes."""
        ...

    def direction(self) -> tuple[Operation, ...]:
        """Return the operations that set the direction to -H gradient, H being the inverse Hessian's approximation."""
        ...

    def learn(self, step: float, gradient: str) -> Operating[None]:
        """Take up the change of a gradient, from `PREVIOUS` to the named vector, over `step` times the direction."""
        ...

    def forget(self) -> Operating[None]:
        """Begin anew: H = I until the next step."""
        ...

    def state(self) -> dict[str, Any]:
        """Return scalars from which to resume with the vectors and matrices on the shards."""
        ...
