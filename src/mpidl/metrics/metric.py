"""What a metric is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.metrics.rows import rows

Vector = NDArray[np.float64]


class Metric(ABC):
    """A figure that sums over the samples decide, so that parts of the data can be evaluated apart.

    Attributes
    ----------
    name : str
        The metric's name in ``run.metrics``.
    """

    name: ClassVar[str]

    @abstractmethod
    def size(self, outputs: int) -> int:
        """Return the number of sums for a model with so many outputs.

        Raises
        ------
        UsageError
            They are too many for this metric.
        """

    @abstractmethod
    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        """Return the sums of a batch; those of several batches are added up.

        Parameters
        ----------
        outputs, targets : array
            See `mpidl.metrics.rows.rows`.
        weight : float
            What the batch counts, shared by its predictions: without another, its number of samples.

        Returns
        -------
        array (size,) of float64
        """

    @abstractmethod
    def value(self, sums: Vector) -> float:
        """Return the figure; NaN if the data do not tell."""


class RowMetric(Metric):
    """A metric whose sums are over rows, a prediction each, which share the batch's weight equally."""

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        table, targets = rows(outputs, targets)
        if not len(table):
            return np.zeros(self.size(table.shape[1]))
        return self._sums(table, targets) * (weight / len(table))

    @abstractmethod
    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        """Return the sums of rows, each with weight 1."""


def ratio(above: float, below: float) -> float:
    """Return a quotient; NaN if it has none."""
    return float(above / below) if below else float("nan")
