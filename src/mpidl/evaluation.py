"""Evaluating a model on a split of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpidl.checkpoint import latest
from mpidl.config import load
from mpidl.data.dataset import Split
from mpidl.job import build
from mpidl.nn.model import Model
from mpidl.parameters import Range

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


def evaluate(run: Path) -> dict[str, Any]:
    """Evaluate a run's newest checkpoint on its test data.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.

    Returns
    -------
    dict
        run_dir, step, epoch, samples, test_loss, test_accuracy (None where correctness means nothing).

    Raises
    ------
    UsageError
        There is no checkpoint, or its model or data can't be had.
    """
    checkpoint = latest(run)
    job = build(load(run / "config.toml"), checkpoint)
    job.model.parameters[:] = checkpoint.read("parameters", Range(0, checkpoint.size))
    job.place(mirrored=False)
    test = job.dataset.test
    loss, correct = evaluate_split(job.model, test, 0, test.samples)
    position = checkpoint.position
    return {
        "run_dir": str(run),
        "step": position.step,
        "epoch": position.epoch,
        "samples": position.samples,
        "test_loss": loss / test.samples,
        "test_accuracy": None if np.isnan(correct) else correct / test.samples,
    }
