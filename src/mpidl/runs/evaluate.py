"""Evaluating a trained model, ``mpidl evaluate``, and writing its outputs: ``mpidl predict``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
from tqdm import tqdm

from mpidl.config import PYTHON_MODEL, Config, DataSection, from_dict, source_of
from mpidl.config.configuration import read
from mpidl.data import Dataset, Private, Source, Split, held_out, opened
from mpidl.data.given import Given, as_source
from mpidl.data.hdf5_files import closing
from mpidl.data.preprocessing import Normalisation, Normalised
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import UsageError
from mpidl.job.build import build_model, own_model
from mpidl.job.checkpoints import restore
from mpidl.job.checks import scoring
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import local_model
from mpidl.job.rehearsal import count_outputs
from mpidl.metrics.figures import Figures, known, named
from mpidl.nn.evaluation import BATCH, evaluate_split
from mpidl.nn.model import CompleteModel, Model, TorchModule
from mpidl.paths import check_new, numbered, run_directory, user_path, whole, writing_hdf5
from mpidl.report.summary import EvaluationSummary
from mpidl.runs.agreement import at_first_rank, by_first_rank, ranks, together
from mpidl.runs.load import network_of
from mpidl.schema import keys
from mpidl.sparse.saved import give_rows
from mpidl.storage.checkpoint import Checkpoint
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
) -> EvaluationSummary:
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
    EvaluationSummary
        The figures of the test and validation data, None where one is undefined, and the checkpoint's step.

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
    values = {
        "run_dir": str(run),
        "step": position.step,
        "epoch": position.epoch,
        "samples": position.samples,
        **known(named(figures, sums)),
        "accuracy_name": scoring(job.original, job.dataset).accuracy,
    }
    return cast("EvaluationSummary", values)


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


#: Words for the splits of a run's own data.
SPLITS = ("train", "validation", "test")


def predict(run: Path, data: str, file: Path, step: int | str | None = None, force: bool = False) -> dict[str, Any]:
    """Write the outputs of a run's trained model for some inputs to an HDF5 file; collective over the ranks.

    The ranks take batches of fixed size in turn, so that the number of ranks changes no bit.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.
    data : str
        A file (see `mpidl.data.unlabelled.open_inputs`) or, in `SPLITS`, a split of the run's own data. Inputs are
        prepared as for the training, but not augmented.
    file : Path
        Gets the dataset ``outputs`` (samples, ...): the model's last layer. The file appears when it is complete.
    step : int or "best", optional
        The checkpoint; the newest undamaged one by default.
    force : bool
        Whether to replace the file if it exists.

    Returns
    -------
    dict
        run_dir, step, data, file, samples, shape (of one sample's outputs).

    Raises
    ------
    UsageError
        There is no such checkpoint, model, data or split, they don't fit, or the file exists or can't be written.
    MpidlError
        The checkpoint is damaged or can't be read, or the model gives no outputs.
    """
    rank, gather = ranks()
    together(lambda: check_new(file, force))
    checkpoint = checkpoint_of(run, step, rank, gather)
    model, split = together(lambda: _open(run, checkpoint, data))
    shape = _write(file, model, split, rank, len(gather(None)))
    return {
        "run_dir": str(run),
        "step": checkpoint.position.step,
        "data": data,
        "file": str(file),
        "samples": split.samples,
        "shape": shape,
    }


def _open(run: Path, checkpoint: Checkpoint, data: str) -> tuple[CompleteModel, Split]:
    """Return the trained model, and the inputs prepared as it takes them."""
    config = config_of(run)
    if config.model.factory == PYTHON_MODEL:
        instead = f"in Python, the module has its values after mpidl.evaluate({str(run)!r}, module, data, loss=...)"
        raise UsageError(f"{run}: the model is an object of a Python script, which predict doesn't have; {instead}")
    network, shape = network_of(checkpoint), None
    # Only a factory needs the data, and the words for their splits.
    dataset = config.data_source.open() if network is None or data in SPLITS else None
    model: CompleteModel
    if network is not None:
        model, shape = network, tuple(network.input_shape)
    else:
        assert dataset is not None
        job = Job.of(config, dataset, build_model(config, dataset))
        restore(job, checkpoint)
        model, shape = job.original, dataset.input_shape
    give_rows(model, checkpoint)
    if data in SPLITS and dataset is not None:
        dataset = held_out(dataset, config.data.validation, config.data.portion, config.run.seed)
    split = _split(data, shape) if data not in SPLITS else getattr(dataset, data, None)
    if split is None:
        raise UsageError(f"{data}: the data of {run} have no such split")
    if model.takes_integers:
        split = split.as_integers()
    if model.dtype == np.float64:
        split = split.as_double()
    normalisation = config.data.normalise
    return model, split if normalisation == Normalisation() else Normalised(split, normalisation)


def _split(data: str, shape: tuple[int, ...] | None) -> Split:
    """Open a file whose samples have this shape, if it is known."""
    split = open_inputs(user_path(data))
    if shape not in (None, split.input_shape):
        raise UsageError(f"{data}: samples of shape {split.input_shape}, expected {shape} as in the training")
    return split


def _write(file: Path, model: CompleteModel, split: Split, rank: int, size: int) -> tuple[int, ...]:
    """Compute all outputs, which the first rank writes; return the shape of one sample's."""
    shape: tuple[int, ...] = ()
    with ExitStack() as stack:
        path = stack.enter_context(whole(file)) if rank == 0 else file
        written: h5py.Dataset | None = None

        def append(start: int, blocks: list[np.ndarray | None] | None) -> None:
            nonlocal shape, written
            for block in blocks or ():
                if block is None:
                    continue
                if written is None:
                    shape, opened = block.shape[1:], stack.enter_context(writing_hdf5(path))
                    written = opened.create_dataset("outputs", (split.samples, *shape), block.dtype)
                if block.shape[1:] != shape:
                    found = f"outputs of shape {block.shape[1:]} for a sample, those before are of {shape}"
                    raise UsageError(f"model: {found}, expected one shape")
                written[start : start + len(block)] = block
                start += len(block)

        with tqdm(total=split.samples, unit=" samples", disable=None if rank == 0 else True, delay=1) as bar:
            for start in range(0, split.samples, BATCH * size):
                blocks = at_first_rank(together(partial(_outputs, model, split, start + BATCH * rank)))
                together(partial(append, start, blocks))
                bar.update(min(BATCH * size, split.samples - start))
        together(stack.close)
    return by_first_rank(lambda: shape)


def _outputs(model: CompleteModel, split: Split, start: int) -> np.ndarray | None:
    """Return the outputs for the batch of samples from `start` on; None if there are no more."""
    stop = min(start + BATCH, split.samples)
    if start >= stop:
        return None
    batch = split.gather(np.arange(start, stop))
    found = model.outputs(batch)
    if found is None:
        raise UsageError("model: evaluate(batch) returns no outputs, expected (loss, correct, outputs)")
    outputs = np.array(found)
    if outputs.shape[:1] != (stop - start,):
        raise UsageError(f"model: outputs of shape {outputs.shape} for {stop - start} samples, expected one for each")
    return outputs
