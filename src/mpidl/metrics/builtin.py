"""Metrics of numbers, where a class id stands for its one-hot row, and of classes and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.metrics.metric import LABELLED, Mean, RowMetric, Vector, are_labels, one_hot
from mpidl.metrics.scoring import without_nan

#: Relative to the mean, a standard deviation below this is rounding error.
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

    If all targets are the same, it is 1 where there are no errors, else 0. Squared deviations of parts of the data are
    merged by their means (Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance, equation 1.5).
    """

    name = "r2"

    def size(self, outputs: int) -> int:
        return 1 + 3 * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        rows = one_hot(targets, outputs.shape[1])
        errors = ((outputs - rows) ** 2).sum(axis=0)
        return np.concatenate([[len(rows)], errors, rows.sum(axis=0), len(rows) * rows.var(axis=0)])

    def merged(self, first: Vector, second: Vector) -> Vector:
        found = first + second
        if first[0] and second[0]:
            means = [sums[1:].reshape(3, -1)[1] / sums[0] for sums in (first, second)]
            found[1:].reshape(3, -1)[2] += (means[0] - means[1]) ** 2 * (first[0] * second[0] / found[0])
        return found

    def value(self, sums: Vector) -> float:
        if not sums[0]:
            return float("nan")
        errors, totals, deviations = sums[1:].reshape(3, -1)
        varies = deviations > (ROUNDING * totals) ** 2 / sums[0]
        of_constant = np.where(errors > 0, 0.0, 1 - errors)
        found = np.where(varies, 1 - errors / np.where(varies, deviations, 1), of_constant)
        return float(found.mean())


class Top5Accuracy(Mean):
    """Share of the samples whose class, or highest target in a row of targets, is among the five highest outputs.

    Of equal outputs, those of the last classes count as higher, as in scikit-learn's ``top_k_accuracy_score``. A sample
    with an output that is NaN is never right.
    """

    name = "top5_accuracy"

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        labels = targets if are_labels(targets) else targets.argmax(axis=1)
        own = outputs[np.arange(len(outputs)), labels][:, None]
        later = np.arange(outputs.shape[1]) > labels[:, None]
        higher = ((outputs > own) | (outputs == own) & later).sum(axis=1)
        return np.array([((higher < 5) & without_nan(outputs)).sum(), len(outputs)], np.float64)


class F1(RowMetric):
    """F1 score of each class, the harmonic mean of precision and recall, averaged over the classes (macro).

    Classes in neither targets nor predictions are left out. With class ids or a softmax, the highest output is the
    prediction; with rows of targets, each output above 0, or a probability above 0.5, predicts its own label. With one
    output, it is the score of that label. It is NaN if an output is.
    """

    name = "f1"

    def size(self, outputs: int) -> int:
        return 2 * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        classes, targets = outputs.shape[1], self._labels(targets)
        if not without_nan(outputs).all():
            return np.full(self.size(classes), np.nan)
        actual = one_hot(targets, classes) > LABELLED
        labels = are_labels(targets)
        predicted = one_hot(outputs.argmax(axis=1), classes) > 0 if labels else outputs > self._scoring.threshold
        both = (actual & predicted).sum(axis=0)
        return np.concatenate([both, actual.sum(axis=0) + predicted.sum(axis=0)]).astype(np.float64)

    def value(self, sums: Vector) -> float:
        both, either = sums.reshape(2, -1)
        occurs = either != 0
        return float((2 * both[occurs] / either[occurs]).mean()) if occurs.any() else float("nan")
