"""Evaluating a model on a split of the data."""

from __future__ import annotations

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
