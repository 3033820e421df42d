"""Evaluating a model on a split of the data."""

from __future__ import annotations

import numpy as np

from mpidl.data.dataset import Split
from mpidl.nn.model import PlacedModel

#: Samples of a batch: large enough for full speed, small enough to stay in cache.
BATCH = 256


def evaluate_split(model: PlacedModel, split: Split, start: int, stop: int) -> tuple[float, float]:
    """Evaluate a model's present parameters on the samples [start, stop) of a split.

    Returns
    -------
    loss : float
        Sum of the losses.
    correct : float
        Number of correct predictions; NaN if it has no meaning.
    """
    loss, correct = 0.0, 0.0
    for first in range(start, stop, BATCH):
        batch = split.gather(np.arange(first, min(stop, first + BATCH)))
        batch_loss, batch_correct = model.evaluate(batch)
        loss += float(batch_loss)
        correct += float(batch_correct)
    return loss, correct
