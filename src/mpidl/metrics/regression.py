"""Metrics of numbers. A class id as target stands for its one-hot row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.metrics.metric import Mean, RowMetric, Vector
from mpidl.metrics.rows import one_hot

#: Relative to a sum of squares, a variance below this is rounding error.
ROUNDING = 1e-14


class MeanSquaredError(Mean):
    """Squared difference of outputs and targets, averaged over outputs and samples."""

    name = "mean_squared_error"

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        errors = outputs - one_hot(targets, outputs.shape[1])
        return np.array([(errors**2).mean(axis=1).sum(), len(outputs)])


class MeanAbsoluteError(Mean):
    """Absolute difference of outputs and targets, averaged over outputs and samples."""

    name = "mean_absolute_error"

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        errors = outputs - one_hot(targets, outputs.shape[1])
        return np.array([np.abs(errors).mean(axis=1).sum(), len(outputs)])


class R2(RowMetric):
    """Coefficient of determination of each output, 1 - (squared errors) / (squared deviations), averaged over them.

    If all targets are the same, it is 1 where there are no errors, else 0. The deviations come from the sums of the
    targets and of their squares, in float64: 8 digits remain where the mean is 10,000 standard deviations.
    """

    name = "r2"

    def size(self, outputs: int) -> int:
        return 1 + 3 * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        rows = one_hot(targets, outputs.shape[1])
        errors = ((outputs - rows) ** 2).sum(axis=0)
        return np.concatenate([[len(rows)], errors, rows.sum(axis=0), (rows**2).sum(axis=0)])

    def value(self, sums: Vector) -> float:
        if not sums[0]:
            return float("nan")
        errors, first, second = sums[1:].reshape(3, -1)
        deviations = second - first**2 / sums[0]
        varies = deviations > ROUNDING * second
        of_constant = np.where(errors > 0, 0.0, 1.0)
        found = np.where(varies, 1 - errors / np.where(varies, deviations, 1), of_constant)
        return float(found.mean())
