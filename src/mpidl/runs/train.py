"""Training from a Python script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mpidl.algorithms import Algorithm, Downpour
from mpidl.config import Config, chosen_rule
from mpidl.config import sections as settings
from mpidl.data import Dataset, Source
from mpidl.errors import UsageError
from mpidl.job.build import PYTHON_MODEL
from mpidl.job.job import Job
from mpidl.nn.model import Model
from mpidl.rules import Rule
from mpidl.runs.start import start
from mpidl.schema import build
from mpidl.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class PythonData:
    """Data that a script made itself."""

    name: ClassVar[str] = "python"

    def open(self) -> Dataset:
        """Only the script has them.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError("data.source: the run's data were made by a Python script; go there")


def train(
    model: Model,
    data: Dataset | Source,
    *,
    algorithm: Algorithm | None = None,
    rule: Rule | None = None,
    servers: int = 1,
    batch: int = 128,
    portion: int | None = None,
    checkpoint_every: float = 60.0,
    keep: int = 3,
    resume: bool = False,
    device: str | Mapping[str, Any] = "auto",
    **run: Any,
) -> dict[str, Any]:
    """Train a model on the ranks of the MPI job that runs this script, or in this process alone.

    Every rank runs the same script and calls this with the same arguments; which role it plays is decided here.
    Afterwards ``model.parameters`` holds the trained parameters on every worker, and in a world of one.

    Parameters
    ----------
    model : Model
        A `mpidl.nn.Network`, or any object with ``parameters`` and ``loss_and_gradient(batch)``.
    data : Dataset or Source
        Such as ``Idx("data/fashion-mnist")``.
    algorithm : Algorithm, optional
        Downpour with n_push = n_fetch = 1 by default.
    rule : Rule, optional
        What shards do with a gradient, where the algorithm leaves that choice; the algorithm's default, which is
        Adagrad(0.01) for most.
    servers : int
        Shards of the parameters; algorithms without servers ignore it.
    batch, portion : int
        Samples of a minibatch; samples handed to a worker at a time (four batches by default).
    checkpoint_every : float
        Seconds between checkpoints.
    keep : int
        How many checkpoints to keep beside the first and the last.
    resume : bool
        Go on from the newest checkpoint of the run's directory.
    device : str or mapping
        Where a network computes: "auto", "cpu" or "cuda"; or keys of ``[device]``.
    **run
        Keys of ``[run]``: name, dir, epochs or steps, seed, deterministic, target_accuracy, report.

    Returns
    -------
    dict
        The run's summary, on every rank.

    Raises
    ------
    MpidlError
        What the run met, in one line.
    """
    algorithm = algorithm if algorithm is not None else Downpour()
    data_keys = {"batch": batch} if portion is None else {"batch": batch, "portion": portion}
    source: Source = PythonData() if isinstance(data, Dataset) else data
    config = Config(
        run=build(settings.Run, "run", run),
        data=build(settings.Data, "data", data_keys),
        data_source=source,
        model=settings.Model(factory=PYTHON_MODEL),
        algorithm=algorithm,
        rule=chosen_rule(algorithm, rule),
        topology=build(settings.Topology, "topology", {"servers": servers}),
        checkpoint=build(settings.Checkpoint, "checkpoint", {"every": checkpoint_every, "keep": keep}),
        device=build(settings.Device, "device", {"kind": device} if isinstance(device, str) else device),
    )
    config.algorithm.check(config.run.deterministic, config.rule)

    def make(config: Config, checkpoint: Checkpoint | None) -> Job:
        return Job(config, data if isinstance(data, Dataset) else data.open(), model, checkpoint)

    return start(config, make, Path(config.run.dir) / config.run.name if resume else None)
