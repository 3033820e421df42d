"""The norm of a replica's gradient, measured now and then."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf
from time import perf_counter
from typing import Any

from mpidl.parameters.ranges import Range

#: Shortest time between two measurements, relative to that of the quickest one.
SPACING = 100


class GradientNorm:
    """Measures gradients for up to a hundredth of the time, because that takes a pass through memory.

    Parameters
    ----------
    trained : sequence of Range
        The ranges of the flat vector that are trained; nothing is measured if there are none.

    Attributes
    ----------
    square : float
        Squared Euclidean norm, over these ranges, of the gradient that was measured last; 0 if none was.
    """

    def __init__(self, trained: Sequence[Range] = ()) -> None:
        self._parts = [slice(*part) for part in trained]
        self._quickest, self._due = inf, 0.0
        self.square = 0.0

    def look(self, gradient: Any) -> None:
        """Measure a gradient, shape (size,), if it is time to."""
        if self._parts and (now := perf_counter()) >= self._due:
            self.square = fsum(float(gradient[part] @ gradient[part]) for part in self._parts)
            ended, first = perf_counter(), self._quickest == inf
            self._quickest = min(self._quickest, ended - now)
            # The first measurement may be slow, and is repeated at once.
            self._due = ended if first else ended + SPACING * self._quickest
