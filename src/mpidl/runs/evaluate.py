"""Evaluating a trained model: ``mpidl evaluate``."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.config import Config, DataSection, PythonData, from_dict
from mpidl.config.configuration import read
from mpidl.data import Dataset, Source
from mpidl.job.build import PYTHON_MODEL, build_model
from mpidl.job.job import Job
from mpidl.nn.evaluation import evaluate_split
from mpidl.nn.model import Model
from mpidl.schema import keys
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


def evaluate(run: str | Path, model: Model | None = None, data: Dataset | Source | None = None) -> dict[str, Any]:
    """Evaluate the model of a run's newest undamaged checkpoint on the test data.

    Parameters
    ----------
    run : str or Path
        Directory of the run, such as ``"runs/digits"``.
    model : Model, optional
        The model, if a Python script gave it to `train`: its parameters become those of the checkpoint. Otherwise the
        run's configuration describes it.
    data : Dataset or Source, optional
        The data, if a Python script gave them to `train`, or others to test with. Otherwise the run's configuration
        names them.

    Returns
    -------
    dict
        run_dir, step, epoch, samples, test_loss, test_accuracy (None where it has no meaning), accuracy_name.

    Raises
    ------
    UsageError
        There is no good checkpoint, or its data or model can't be loaded or don't fit.
    MpidlError
        A checkpoint can't be read for another reason than damage.
    """
    run = Path(run)
    checkpoint = latest(run)
    config = _config(run, model is not None, data)
    dataset = data if isinstance(data, Dataset) else config.data_source.open()
    job = Job(config, dataset, build_model(config, dataset) if model is None else model)
    job.restore(checkpoint)
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


def _config(run: Path, own_model: bool, data: Dataset | Source | None) -> Config:
    """Return what of a run's configuration says how its model is tested."""
    values = read(run / "config.toml")
    sections: dict[str, Any] = {name: values[name] for name in ("run", "data", "model", "device") if name in values}
    if data is not None:
        # Not the keys of the source, which may be one that no configuration can name.
        sections["data"] = {key: value for key, value in values["data"].items() if key in keys(DataSection)}
    if own_model:
        sections["model"] = {"factory": PYTHON_MODEL}
    return from_dict(sections, data_source=PythonData() if isinstance(data, Dataset) else data)
