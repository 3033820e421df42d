"""The interface of metrics, and a metric that a user's function computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import MpidlError, raised
from mpidl.metrics.rows import rows

Vector = NDArray[np.float64]


class Metric(ABC):
    """A figure computed from sums over the samples, so that parts of the data can be evaluated separately.

    Attributes
    ----------
    name : str
        The metric's name in ``run.metrics``.
    """

    name: ClassVar[str]

    @abstractmethod
    def size(self, outputs: int) -> int:
        """Return the number of sums for a model with this number of outputs.

        Raises
        ------
        UsageError
            The metric doesn't support that many outputs.
        """

    @abstractmethod
    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        """Return the sums of a batch; those of several batches are added up.

        Parameters
        ----------
        outputs, targets : array
            In any of the forms of `mpidl.metrics.rows.rows`.
        weight : float
            Weight of the batch, by default its number of samples.

        Returns
        -------
        array (size,) of float64
        """

    @abstractmethod
    def value(self, sums: Vector) -> float:
        """Return the figure; NaN if it is undefined."""


class RowMetric(Metric):
    """A metric that sums over rows, one per prediction, which share the batch's weight equally."""

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        table, targets = rows(outputs, targets)
        if not len(table):
            return np.zeros(self.size(table.shape[1]))
        return self._sums(table, targets) * (weight / len(table))

    @abstractmethod
    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        """Return the sums of rows, each with weight 1."""


class Mean(RowMetric):
    """A metric whose sums are the total over the rows and the number of rows."""

    def size(self, outputs: int) -> int:
        return 2

    def value(self, sums: Vector) -> float:
        return ratio(*sums)


def ratio(above: float, below: float) -> float:
    """Return the quotient, or NaN for a divisor of 0."""
    return float(above / below) if below else float("nan")


class OwnMetric(Metric):
    """A mean computed by a user's function, which returns a sum over the samples of a batch and its divisor.

    Parameters
    ----------
    key : str
        Its entry in ``run.metrics``, for errors.
    function : callable
        Called with the outputs and targets of a batch, as NumPy arrays; returns two numbers. The metric is the sum
        of the first over all batches, divided by that of the second.
    """

    def __init__(self, key: str, name: str, function: Callable[[NDArray[Any], NDArray[Any]], Any]) -> None:
        self.name = name  # type: ignore[misc]
        self._key, self._function = key, function

    def size(self, outputs: int) -> int:
        return 2

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        """Return what the function returns for a batch; `weight` is ignored.

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
                "expected two numbers: a sum and its divisor"
            )
        return sums

    def value(self, sums: Vector) -> float:
        return ratio(*sums)
