"""The outputs of a trained model for a file or a split of data: ``mpidl predict``."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from mpidl.config import PYTHON_MODEL
from mpidl.data import Split, held_out
from mpidl.data.preprocessing import Normalisation, Normalised
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import UsageError
from mpidl.job.build import build_model
from mpidl.job.checkpoints import restore
from mpidl.job.job import Job
from mpidl.nn.model import BATCH, CompleteModel
from mpidl.paths import check_new, user_path, whole, writing_hdf5
from mpidl.runs.agreement import at_first_rank, by_first_rank, ranks, together
from mpidl.runs.evaluate import config_of
from mpidl.runs.load import network_of
from mpidl.sparse.saved import give_rows
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import checkpoint_of

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
