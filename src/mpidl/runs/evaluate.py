"""Evaluating a trained model: ``mpidl evaluate``."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.config import load
from mpidl.job.build import build
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters import Range
from mpidl.storage.checkpoint import latest, steps


def newest(run: Path) -> Path:
    """Return the newest run of a name that has a checkpoint: NAME, NAME-2, NAME-3, ... are made in this order.

    Where it isn't `run` itself, a line on stderr says so.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.
    """
    runs = {1: run}
    for path in run.parent.glob(f"{glob.escape(run.name)}-*"):
        number = path.name.removeprefix(f"{run.name}-")
        if number.isdecimal() and int(number) > 1:
            runs[int(number)] = path
    trained = [number for number, path in runs.items() if steps(path / "checkpoints")]
    found = runs[max(trained, default=1)]
    if found != run:
        text = f"{found} is the newest run of that name; --exact takes {run} itself"
        print(f"mpidl: {text}", file=sys.stderr, flush=True)
    return found


def evaluate(run: str | Path) -> dict[str, Any]:
    """Evaluate the model of a run's newest undamaged checkpoint on the test data.

    Parameters
    ----------
    run : str or Path
        Directory of the run, such as ``"runs/digits"``.

    Returns
    -------
    dict
        run_dir, step, epoch, samples, test_loss, test_accuracy (None where it has no meaning), accuracy_name.

    Raises
    ------
    UsageError
        There is no good checkpoint, or its data or model can't be loaded.
    MpidlError
        A checkpoint can't be read for another reason than damage.
    """
    run = Path(run)
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
        "accuracy_name": job.accuracy_name,
    }
