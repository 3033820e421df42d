"""Metrics of numbers, where a class id stands for its one-hot row, and of classes, labels and their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import UsageError
from mpidl.metrics.metric import LABELLED, Mean, RowMetric, Vector, are_labels, one_hot, without_nan

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


#: Bins of the scores of an output.
BINS = 512
#: Maximum number of outputs: each has bins of its own.
MOST = 100
#: Infinite scores count as these, so that means are finite.
HIGHEST = 1e300


class Auc(RowMetric):
    """Area under the receiver operating characteristic of each class against all others, averaged over the classes.

    It is the probability that a sample of the class has a higher score than one of the others (Hanley and McNeil 1982,
    The meaning and use of the area under a receiver operating characteristic curve), where equal scores count half.
    With class ids or a softmax, the outputs are taken as logits, and a score is the log-odds of the class; with rows of
    targets or one output, it is the output itself. It is exact for up to 512 different scores. More are gathered, as
    they are seen, into 512 bins of similar weight, with the mean of each as its score; the error is about half the
    share of pairs, a sample of the class and another one, in the same bin. Classes that no sample has, or all have, are
    left out. It is NaN if a score is.

    The sums are, for each output, the scores of the bins and the weights of other samples and of the class' own there.
    """

    name = "auc"

    def size(self, outputs: int) -> int:
        if outputs > MOST:
            raise UsageError(f"run.metrics: 'auc' takes up to {MOST} outputs, the model has {outputs}")
        return 3 * BINS * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        classes, targets = outputs.shape[1], self._labels(targets)
        actual = one_hot(targets, classes) > LABELLED
        scores = np.clip(_log_odds(outputs) if are_labels(targets) else outputs, -HIGHEST, HIGHEST)
        return _binned(np.stack([scores, ~actual, actual]).swapaxes(1, 2)).reshape(-1)

    def _weighed(self, sums: Vector, weight: float) -> Vector:
        weighed = sums.reshape(3, -1).copy()
        weighed[1:] *= weight
        return weighed.reshape(-1)

    def merged(self, first: Vector, second: Vector) -> Vector:
        parts = (sums.reshape(3, -1, BINS) for sums in (first, second))
        return _binned(np.concatenate(list(parts), axis=2)).reshape(-1)

    def value(self, sums: Vector) -> float:
        if np.isnan(sums).any():
            return float("nan")
        scores, others, own = sums.reshape(3, -1, BINS)
        pairs = others.sum(axis=1) * own.sum(axis=1)
        known = pairs > 0
        won = [_won(*row) for row in zip(scores[known], others[known], own[known], strict=True)]
        return float((won / pairs[known]).mean()) if known.any() else float("nan")


def _won(scores: Vector, others: Vector, own: Vector) -> float:
    """Return the weight of the pairs in which the score of the class is higher, plus half of that of equal ones."""
    _, places = np.unique(scores, return_inverse=True)
    lost, won = np.bincount(places, others), np.bincount(places, own)
    return float(won @ (np.cumsum(lost) - lost / 2))


def _binned(points: Vector) -> Vector:
    """Gather points in bins.

    If an output has up to `BINS` different scores, these are its bins. Otherwise points are in the same bin if, in
    ascending order, the middles of their weights are in the same of `BINS` equal parts of the whole weight. However
    often bins are gathered anew, none is heavier than two such parts, unless it has only one score.

    Parameters
    ----------
    points : array (3, outputs, n)
        Scores, and weights of other samples and of the class' own; scores without a weight don't count.

    Returns
    -------
    array (3, outputs, BINS)
    """
    points = np.where((points[1:] > 0).any(axis=0), points, np.array([HIGHEST, 0, 0])[:, None, None])
    points = np.take_along_axis(points, points[0].argsort(axis=1)[None], axis=2)
    # Equal scores are one.
    begins = np.ones(points.shape[1:], bool)
    np.not_equal(points[0, :, 1:], points[0, :, :-1], out=begins[:, 1:])
    places = begins.cumsum(axis=1) - 1
    scores = np.zeros(places.shape)
    np.put_along_axis(scores, places, points[0], axis=1)
    others, own = (_added(places, weights, places.shape[1]) for weights in points[1:])
    weights = others + own

    middles = weights.cumsum(axis=1) - weights / 2
    crowded = (weights > 0).sum(axis=1) > BINS
    parts = middles[crowded] * (BINS / weights[crowded].sum(axis=1, keepdims=True))
    places = np.tile(np.arange(places.shape[1]), (len(places), 1))
    places[crowded] = parts.astype(np.int64)
    np.minimum(places, BINS - 1, out=places)
    whole = np.take_along_axis(_added(places, weights, BINS), places, axis=1)
    shares = np.divide(weights, whole, out=np.zeros(whole.shape), where=whole > 0)
    return np.stack([_added(places, each, BINS) for each in (scores * shares, others, own)])


def _added(places: NDArray[np.int64], values: Vector, count: int) -> Vector:
    """Add up the values (rows, n) at each place of their row: array (rows, count)."""
    rows = len(places)
    flat = places + count * np.arange(rows)[:, None]
    found = np.bincount(flat.reshape(-1), values.reshape(-1), minlength=rows * count)
    return np.asarray(found, np.float64).reshape(rows, count)


def _log_odds(outputs: Vector) -> Vector:
    """Return the logarithm of p / (1 - p) for each class' probability p by softmax."""
    found = np.empty_like(outputs)
    for own in range(outputs.shape[1]):
        others = np.delete(outputs, own, axis=1)
        highest = others.max(axis=1)
        with np.errstate(invalid="ignore"):  # The probabilities of infinite logits are NaN.
            found[:, own] = outputs[:, own] - highest - np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return found
