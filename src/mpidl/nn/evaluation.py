"""Evaluating a model on a split of the data."""

from __future__ import annotations

import numpy as np

from mpidl.data.dataset import Split
from mpidl.nn.model import Model

#: Samples of a batch: large enough for full speed, small enough to stay in cache.
BATCH = 256


def evaluate_split(model: Model, split: Split, start: int, stop: int) -> tuple[float, float]:
    """Evaluate a model's present parameters on the samples [start, stop) of a split.

    Returns
    -------
    loss : float
        Sum of the losses.
    correct : float
        Number of correct predictions; NaN if the model has no `evaluate`, or correctness means nothing.
    """
    evaluate_batch = getattr(model, "evaluate", None)
    loss, correct = 0.0, 0.0
    for first in range(start, stop, BATCH):
        batch = split.gather(np.arange(first, min(stop, first + BATCH)))
        if evaluate_batch is None:
            loss += float(model.loss_and_gradient(batch)[0]) * len(batch.inputs)
            correct = float("nan")
        else:
            batch_loss, batch_correct = evaluate_batch(batch)
            loss += float(batch_loss)
            correct += float(batch_correct)
    return loss, correct
