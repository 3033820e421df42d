"""Evaluating a trained model: ``mpidl evaluate``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mpidl.config import PYTHON_MODEL, Config, DataSection, from_dict, source_of
from mpidl.config.configuration import read
from mpidl.data import Dataset, Private, Source, opened
from mpidl.data.given import Given, as_source
from mpidl.data.hdf5_files import closing
from mpidl.errors import UsageError
from mpidl.job.build import build_model, own_model
from mpidl.job.checkpoints import restore
from mpidl.job.checks import scoring
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import local_model
from mpidl.job.rehearsal import count_outputs
from mpidl.metrics.figures import Figures, known, named
from mpidl.nn.model import Model, TorchModule, evaluate_split
from mpidl.paths import numbered, run_directory
from mpidl.schema import keys
from mpidl.sparse.saved import give_rows
from mpidl.storage.checkpoints import checkpoint_of, steps

#: Keys of ``[run]`` by which evaluations end a run.
ENDING = ("target", "patience")


def trained(run: Path, newest: bool) -> Path:
    """Return the directory of a trained run: the one given or, on request, the newest of its name with a checkpoint.

    Raise UsageError if it isn't that of a run.
    """
    if newest:
        runs = numbered(run)
        run = runs[max((number for number, path in runs.items() if steps(path / "checkpoints")), default=1)]
    return run_directory(run, "checkpoints")


def evaluate(
    run: str | Path,
    model: Model | TorchModule | None = None,
    data: Given | None = None,
    *,
    loss: str | Callable[[Any, Any], Any] | None = None,
    step: int | str | None = None,
) -> dict[str, Any]:
    """Evaluate the model of a checkpoint on the test data and, if there are any, on the validation data.

    Parameters
    ----------
    run : str or Path
        Directory of the run, such as ``"runs/digits"``.
    model : Model or torch.nn.Module, optional
        The model, if a Python script gave it to `train`: its parameters become those of the checkpoint. Otherwise the
        run's configuration describes it.
    data : Dataset or Source, or list of them, optional
        The data, if a Python script gave them to `train`, or others to test with. Otherwise the run's configuration
        names them.
    loss : str or callable, optional
        Loss of a PyTorch module; by default that of the run, if it was given by name, or else that of the last training
        of this module in this process.
    step : int or "best", optional
        The checkpoint's step, or the run's best; the newest undamaged one by default.

    Returns
    -------
    dict
        run_dir, step, epoch, samples, accuracy_name, test_loss, test_accuracy and the other figures of ``run.metrics``
        (None where one has no meaning), and the same of the validation data, such as validation_loss.

    Raises
    ------
    UsageError
        There is no good checkpoint, or its data or model can't be loaded or don't fit.
    MpidlError
        A checkpoint can't be read for another reason than damage.
    """
    run, others = run_directory(run, "checkpoints"), as_source(data)
    checkpoint = checkpoint_of(run, step)
    config = config_of(run, model is not None, others)
    with ExitStack() as stack:
        stack.enter_context(closing())
        dataset = opened(config.data_source if others is None else others)
        given = build_model(config, dataset) if model is None else own_model(model, config, loss)
        stack.callback(given.finish)
        job = Job.of(config, dataset, given)
        if not job.evaluated:
            raise UsageError("data: there are no validation or test data")
        restore(job, checkpoint)
        give_rows(job.original, checkpoint)
        local = local_model(place(job, 1), mirrored=False)
        figures = Figures(job.metrics, *count_outputs(job, local))
        sums = {
            name: evaluate_split(local.model, split, 0, split.samples, figures) for name, split in job.evaluated.items()
        }
    position = checkpoint.position
    return {
        "run_dir": str(run),
        "step": position.step,
        "epoch": position.epoch,
        "samples": position.samples,
        **known(named(figures, sums)),
        "accuracy_name": scoring(job.original, job.dataset).accuracy,
    }


def config_of(run: Path, own_model: bool = False, data: Dataset | Source | None = None) -> Config:
    """Return what of a run's configuration says how its model is tested."""
    values = read(run / "config.toml", of_run=True)
    sections: dict[str, Any] = {name: values[name] for name in ("run", "data", "model", "device") if name in values}
    # What ends a run is nothing to its evaluation.
    sections["run"] = {key: value for key, value in sections["run"].items() if key not in ENDING}
    # Its values are those of a checkpoint.
    sections["model"] = {key: value for key, value in sections.get("model", {}).items() if key != "initial"}
    if data is not None:
        # Not the keys of the source, which may be one that no configuration can name.
        sections["data"] = {key: value for key, value in values["data"].items() if key in keys(DataSection)}
        sections["data"]["private"] = isinstance(data, Private)
    if own_model:
        sections["model"] = {"factory": PYTHON_MODEL} | {
            key: value for key, value in values.get("model", {}).items() if key == "loss"
        }
    return from_dict(sections, data_source=None if data is None else source_of(data))
