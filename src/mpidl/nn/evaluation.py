"""Evaluations of a split of the data, and numbers of correct predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.dataset import Split
from mpidl.metrics.figures import Figures
from mpidl.metrics.metric import PLAIN, Scoring, without_nan
from mpidl.nn.model import Evaluation, PlacedModel

#: Samples of a batch of evaluations: large enough for full speed, small enough to stay in cache.
BATCH = 256


def evaluate_split(model: PlacedModel, split: Split, start: int, stop: int, figures: Figures) -> NDArray[np.float64]:
    """Evaluate a model's present parameters on the samples [start, stop) of a split: the sums of its `Figures`."""
    sums = np.zeros(figures.size)
    parts = [np.arange(first, min(stop, first + BATCH)) for first in range(start, stop, BATCH)]
    if model.evaluated == "as a whole":
        parts = [part[:1] for part in parts[:1]]
    for batch in split.in_turn(parts):
        found = Evaluation(*model.evaluate(batch))
        part = figures.sums(found.sums(batch), found.outputs, batch.targets, batch.own_weight)
        sums = figures.merged(sums, part)
    return sums


def correct_classes(
    outputs: Any, targets: Any, axis: int, weight: float | None, scoring: Scoring = PLAIN
) -> tuple[float, float]:
    """Return how many of the targets, class ids, are at the largest output, and how many count.

    The outputs, arrays or tensors, have the targets' axes and `axis` for the classes. If the batch has a weight of its
    own, both are scaled to it.
    """
    counted = scoring.counted(targets)
    right = (outputs.argmax(axis) == targets) & counted & without_nan(outputs, axis)
    return scaled(float(right.sum()), float(counted.sum()), weight)


def scaled(right: float, count: float, weight: float | None) -> tuple[float, float]:
    """Return the numbers of correct predictions and of all, scaled to a weight of the batch's own."""
    return (right, count) if weight is None or not count else (right / count * weight, weight)
