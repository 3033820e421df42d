"""Evaluations of models: on a split of the data, and their correct predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.dataset import Split
from mpidl.metrics.figures import Figures
from mpidl.nn.model import Evaluation, PlacedModel

#: Samples of a batch: large enough for full speed, small enough to stay in cache.
BATCH = 256


def evaluate_split(model: PlacedModel, split: Split, start: int, stop: int, figures: Figures) -> NDArray[np.float64]:
    """Evaluate a model's present parameters on the samples [start, stop) of a split: the sums of its `Figures`."""
    sums = np.zeros(figures.size)
    for batch in split.in_turn([np.arange(first, min(stop, first + BATCH)) for first in range(start, stop, BATCH)]):
        loss, correct, outputs = Evaluation(*model.evaluate(batch))
        sums += figures.sums(batch.total, loss, correct, outputs, batch.targets)
    return sums


def correct_classes(outputs: Any, targets: Any, axis: int, total: float) -> float:
    """Return the share of the targets, class ids, at the largest output, times the batch's weight `total`.

    Ids below 0 don't count. The outputs, arrays or tensors, have the targets' axes and `axis` for the classes.
    """
    counted = targets >= 0
    right = (outputs.argmax(axis) == targets) & counted
    return share_of_total(float(right.sum()), float(counted.sum()), total)


def share_of_total(right: float, count: float, total: float) -> float:
    """Return the share `right` of `count` times the batch's weight."""
    return right if count == total else right / max(count, 1) * total
