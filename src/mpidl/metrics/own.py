"""A metric of the user's own: a function of outputs and targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import MpidlError, raised
from mpidl.metrics.metric import Metric, Vector, ratio


class OwnMetric(Metric):
    """The mean that a function computes: it returns a sum over the samples of a batch, and what to divide it by.

    Parameters
    ----------
    key : str
        What names it in ``run.metrics``, for errors.
    name : str
    function : callable
        Called with the outputs and targets of a batch, as NumPy arrays; returns two numbers. Both are added up over
        all batches, and the first sum divided by the second is the metric.
    """

    def __init__(self, key: str, name: str, function: Callable[[NDArray[Any], NDArray[Any]], Any]) -> None:
        self.name = name  # type: ignore[misc]
        self._key, self._function = key, function

    def size(self, outputs: int) -> int:
        return 2

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        """See `Metric.sums`; the function alone decides what a sample counts.

        Raises
        ------
        MpidlError
            The function raised an error, or returned something else.
        """
        try:
            found = self._function(outputs, targets)
        except MpidlError:
            raise
        except Exception as error:
            raise MpidlError(f"run.metrics: {self._key} {raised(error)}") from error
        try:
            sums = np.array(found, np.float64)
        except (TypeError, ValueError):
            sums = np.empty(0)
        if sums.shape != (2,):
            raise MpidlError(
                f"run.metrics: {self._key} returned {type(found).__name__} of shape {np.shape(sums)}, "
                "expected two numbers: a sum, and what to divide it by"
            )
        return sums

    def value(self, sums: Vector) -> float:
        return ratio(*sums)
