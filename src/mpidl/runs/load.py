"""A trained model in Python: ``mpidl.load``."""

from __future__ import annotations

import re
from pathlib import Path

from mpidl.config import ModelSection
from mpidl.errors import UsageError
from mpidl.job.build import build_network
from mpidl.nn import Network
from mpidl.parameters import Range
from mpidl.paths import run_directory
from mpidl.schema import Natural, build, convert
from mpidl.sparse.saved import give_rows
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import Trained, checkpoint_of, read


def load(run: str | Path, step: int | str | None = None) -> Network | Trained:
    """Return the trained model of a run, from its checkpoint alone.

    Parameters
    ----------
    run : str or Path
        Directory of the run, such as ``"runs/digits"``.
    step : int or "best", optional
        The checkpoint; the newest undamaged one by default.

    Returns
    -------
    Network or Trained
        The network, if ``[[model.layer]]`` describes it. Else the model's names and arrays: a `Trained`, whose
        `parameters`, `constants`, `buffers`, `tables` and, with all but the tables, `tensors` are dicts.

    Raises
    ------
    UsageError
        There is no such checkpoint.
    MpidlError
        It is damaged or can't be read.

    Examples
    --------
    >>> network = mpidl.load("runs/digits")
    >>> outputs = network.predict(inputs)
    >>> arrays = mpidl.load("runs/resnet", "best").tensors
    """
    run = Path(run)
    if run.is_file():
        raise UsageError(f"{run}: a file, expected the directory of a run (mpidl.config.load reads a configuration)")
    checkpoint = checkpoint_of(run_directory(run, "checkpoints"), step)
    network = network_of(checkpoint)
    if network is None:
        return read(checkpoint)
    give_rows(network, checkpoint)
    return network


def network_of(checkpoint: Checkpoint) -> Network | None:
    """Return the network of a checkpoint with its parameters; None if no ``[[model.layer]]`` describes the model.

    Raise UsageError if the checkpoint is of another version, which built other networks from the same section, and
    MpidlError if a file can't be read.
    """
    section = checkpoint.sections.get("model", {})
    if "layer" not in section:
        return None
    shape = checkpoint.data.get("data: shape of a sample")
    if shape is None:
        raise UsageError(f"{checkpoint.path}: saved by an earlier version, which didn't note the shape of a sample")
    seed = convert(checkpoint.sections.get("run", {}).get("seed", 0), Natural, "run.seed")
    extents = tuple(map(int, re.findall(r"\d{1,18}", shape)))
    network = build_network(build(ModelSection, "model", section), extents, seed)
    if {tensor.name: tensor.shape for tensor in network.layout} != checkpoint.shapes:
        raise UsageError(f"{checkpoint.path}: not the tensors of the network that its configuration describes")
    network.parameters = checkpoint.read(checkpoint.trained, Range(0, network.layout.size), network.layout)
    return network
