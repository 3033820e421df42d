"""The built-in metrics: of numbers, where a class id stands for its one-hot row, and of classes and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import UsageError
from mpidl.metrics.metric import Mean, RowMetric, Vector, are_labels, one_hot

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


#: A sample has the labels whose targets exceed this.
LABELLED = 0.5


class Top5Accuracy(Mean):
    """Share of the samples whose class, or highest target in a row of targets, is among the five highest outputs."""

    name = "top5_accuracy"

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        labels = targets if are_labels(targets) else targets.argmax(axis=1)
        higher = (outputs > outputs[np.arange(len(outputs)), labels][:, None]).sum(axis=1)
        return np.array([(higher < 5).sum(), len(outputs)], np.float64)


class F1(RowMetric):
    """F1 score of each class, the harmonic mean of precision and recall, averaged over the classes (macro).

    Classes in neither targets nor predictions are left out. With class ids or a softmax, the highest output is the
    prediction; with rows of targets, each output above 0, or a probability above 0.5, predicts its own label. With one
    output, it is the score of that label.
    """

    name = "f1"

    def size(self, outputs: int) -> int:
        return 2 * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        classes, targets = outputs.shape[1], self._labels(targets)
        actual = one_hot(targets, classes) > LABELLED
        labels = are_labels(targets)
        predicted = one_hot(outputs.argmax(axis=1), classes) > 0 if labels else outputs > self._scoring.threshold
        both = (actual & predicted).sum(axis=0)
        return np.concatenate([both, actual.sum(axis=0) + predicted.sum(axis=0)]).astype(np.float64)

    def value(self, sums: Vector) -> float:
        both, either = sums.reshape(2, -1)
        occurs = either > 0
        return float((2 * both[occurs] / either[occurs]).mean()) if occurs.any() else float("nan")


#: Bins of a histogram of scores.
BINS = 512
#: Maximum number of outputs: each has two histograms.
MOST = 100


class Auc(RowMetric):
    """Area under the receiver operating characteristic of each class against all others, averaged over the classes.

    It is the probability that a sample of the class has a higher score than one of the others (Hanley and McNeil 1982,
    The meaning and use of the area under a receiver operating characteristic curve). With class ids or a softmax, the
    outputs are taken as logits, and a score is the log-odds of the class; with rows of targets or one output, it is the
    output itself. Scores s are counted in 512 bins of equal width in s / (1 + abs(s)), and are equal within a bin: the
    error is at most half the share of pairs, a sample of the class and another one, in the same bin. Classes that no
    sample has, or all have, are left out.
    """

    name = "auc"

    def size(self, outputs: int) -> int:
        if outputs > MOST:
            raise UsageError(f"run.metrics: 'auc' takes up to {MOST} outputs, the model has {outputs}")
        return 2 * BINS * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        classes, targets = outputs.shape[1], self._labels(targets)
        actual = one_hot(targets, classes) > LABELLED
        places = bins(_log_odds(outputs) if are_labels(targets) else outputs)
        places += BINS * (np.arange(classes) + classes * actual)
        return np.bincount(places.reshape(-1), minlength=self.size(classes)).astype(np.float64)

    def value(self, sums: Vector) -> float:
        others, own = sums.reshape(2, -1, BINS)
        below = np.cumsum(others, axis=1) - others
        pairs = own.sum(axis=1) * others.sum(axis=1)
        known = pairs > 0
        won = (own * (below + others / 2)).sum(axis=1)
        return float((won[known] / pairs[known]).mean()) if known.any() else float("nan")


def bins(scores: Vector) -> NDArray[np.int64]:
    """Return the bin of each score, in ascending order of scores."""
    scores = np.nan_to_num(scores)
    squashed = scores / (1 + np.abs(scores))
    places: NDArray[np.int64] = ((squashed + 1) * (BINS / 2)).astype(np.int64)
    return np.minimum(places, BINS - 1)


def _log_odds(outputs: Vector) -> Vector:
    """Return the logarithm of p / (1 - p) for each class' probability p by softmax."""
    found = np.empty_like(outputs)
    for own in range(outputs.shape[1]):
        others = np.delete(outputs, own, axis=1)
        highest = others.max(axis=1)
        found[:, own] = outputs[:, own] - highest - np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return found
