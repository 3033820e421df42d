"""Metrics of predicted classes and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.metrics.metric import RowMetric, Vector, ratio
from mpidl.metrics.rows import are_labels, one_hot

#: Of a row of targets, the labels that a sample has.
LABELLED = 0.5


class Top5Accuracy(RowMetric):
    """Share of the samples whose class is among the five highest outputs; of rows of targets, the highest is meant."""

    name = "top5_accuracy"

    def size(self, outputs: int) -> int:
        return 2

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        labels = targets if are_labels(targets) else targets.argmax(axis=1)
        higher = (outputs > outputs[np.arange(len(outputs)), labels][:, None]).sum(axis=1)
        return np.array([(higher < 5).sum(), len(outputs)], np.float64)

    def value(self, sums: Vector) -> float:
        return ratio(*sums)


class F1(RowMetric):
    """F1 score of each class, the harmonic mean of precision and recall, averaged over the classes (macro).

    Classes that neither targets nor predictions have are left out. With class ids, the highest output is the
    prediction; with rows of targets, each output above 0 is one, of a label of its own. With one output it is the
    score of that label.
    """

    name = "f1"

    def size(self, outputs: int) -> int:
        return 2 * outputs

    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        classes = outputs.shape[1]
        actual = one_hot(targets, classes) > LABELLED
        predicted = one_hot(outputs.argmax(axis=1), classes) > 0 if are_labels(targets) else outputs > 0
        both = (actual & predicted).sum(axis=0)
        return np.concatenate([both, actual.sum(axis=0) + predicted.sum(axis=0)]).astype(np.float64)

    def value(self, sums: Vector) -> float:
        both, either = sums.reshape(2, -1)
        occurs = either > 0
        return float((2 * both[occurs] / either[occurs]).mean()) if occurs.any() else float("nan")
