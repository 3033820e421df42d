"""The norm of a replica's gradient, measured now and then."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from time import monotonic
from typing import Any

from mpidl.parameters.ranges import Range


class GradientNorm:
    """Measures a gradient once in `every` seconds, because that takes a pass through memory.

    Parameters
    ----------
    trained : sequence of Range
        The ranges of the flat vector that are trained; nothing is measured if there are none.

    Attributes
    ----------
    square : float
        Squared Euclidean norm, over these ranges, of the gradient that was measured last; 0 if none was.
    """

    def __init__(self, trained: Sequence[Range] = (), every: float = 0.0) -> None:
        self._parts, self._every, self._due = [slice(*part) for part in trained], every, 0.0
        self.square = 0.0

    def look(self, gradient: Any) -> None:
        """Measure a gradient, shape (size,), if it is time to."""
        if self._parts and (now := monotonic()) >= self._due:
            self._due = now + self._every
            self.square = fsum(float(gradient[part] @ gradient[part]) for part in self._parts)
