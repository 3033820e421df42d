"""Training from a Python script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mpidl.algorithms import Algorithm
from mpidl.config import Config, DebugSection, DeviceSection, from_dict, source_of
from mpidl.config.configuration import read, set_keys
from mpidl.data import Augmentation, Dataset, Normalisation, Source, opened
from mpidl.data.workers import imported_by_worker
from mpidl.errors import UsageError, kind_of, quoted
from mpidl.job.build import PYTHON_MODEL, build_model, own_model
from mpidl.job.job import Job
from mpidl.job.restoring import restore
from mpidl.launch import environment
from mpidl.launch.output import tell_once
from mpidl.launch.signals import held
from mpidl.nn.groups import Group
from mpidl.nn.model import Model, Module
from mpidl.rules import RateSchedule, Rule
from mpidl.runs.agreement import together
from mpidl.runs.start import start
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import latest


def train(
    model: Model | Module | None = None,
    data: Dataset | Source | None = None,
    *,
    loss: str | Callable[[Any, Any], Any] | None = None,
    config: Config | str | Path | Mapping[str, Mapping[str, Any]] | None = None,
    algorithm: Algorithm | None = None,
    rule: Rule | None = None,
    rate: RateSchedule | Mapping[str, Any] | None = None,
    servers: int | None = None,
    partitions: int | None = None,
    batch: int | None = None,
    portion: int | None = None,
    validation: float | None = None,
    augment: Augmentation | Mapping[str, Any] | None = None,
    normalise: Normalisation | Mapping[str, Any] | None = None,
    initial: str | Path | None = None,
    name: str | None = None,
    dir: str | Path | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    deterministic: bool | None = None,
    metrics: Sequence[str] | None = None,
    target: str | None = None,
    target_accuracy: float | None = None,
    patience: int | None = None,
    record: bool | None = None,
    report: float | None = None,
    terminate_on_nan: bool | None = None,
    groups: Sequence[Group | Mapping[str, Any]] | None = None,
    checkpoint_every: float | None = None,
    keep: int | None = None,
    resume: bool = False,
    device: str | DeviceSection | Mapping[str, Any] | None = None,
    debug: DebugSection | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a model on the ranks of the MPI job that runs this script, or in this process alone.

    Every rank runs the same script and calls this function with the same arguments; each rank's role is decided
    here. Afterwards the model holds the trained parameters on every rank.

    An argument that is None is as `config` says; if that doesn't say it either, it has the default given below.

    Parameters
    ----------
    model : Model or torch.nn.Module, optional
        A `Network`, a PyTorch module, a `mpidl.jax.JaxModel`, or any object with ``parameters`` and
        ``loss_and_gradient(batch)``. Takes the place of the section ``[model]`` of `config`.
    data : Dataset or Source, optional
        For example ``Idx("data/fashion-mnist")``, ``Arrays((x, y), (test_x, test_y))``, or a dataset of your own by
        ``Indexed(train, test)``. Takes the place of the source that ``[data]`` of `config` names.
    loss : str or callable, optional
        Loss of a PyTorch module: a name in `torch.nn.functional`, or a function of (outputs, targets). For what else
        there is to choose, make a `mpidl.torch.TorchModel` of the module.
    config : Config, str, Path or mapping, optional
        A configuration, the path of a TOML file, or a mapping of sections, such as
        ``{"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}``.
    algorithm : Algorithm, optional
        ``Downpour()`` by default.
    rule : Rule, optional
        What shards do with a gradient, where the algorithm leaves that choice. The default is the algorithm's,
        ``Adagrad(0.01)`` for most.
    rate : RateSchedule or mapping, optional
        How learning rates change during the run; constant by default.
    servers : int, optional
        Number of shards of the parameters, 1 by default; ignored by algorithms without servers.
    partitions : int, optional
        Number of ranks that the model of each replica, a `Network`, is cut over, 1 by default.
    batch : int, optional
        Samples in a minibatch of one replica, 128 by default.
    portion : int, optional
        Samples given to a worker at a time, a multiple of `batch`; four batches by default.
    validation : float, optional
        Share of the training samples that the model is evaluated on after each epoch, and not trained on; none by
        default.
    augment : Augmentation or mapping, optional
        How training images are changed, differently in every epoch; not at all by default.
    normalise : Normalisation or mapping, optional
        Mean and standard deviation of the inputs, which are normalised by them; 0 and 1 by default.
    initial : str or Path, optional
        A file of trained values to begin with; see ``model.initial``. A run that is resumed ignores it.
    name, dir : str, optional
        The run's directory is ``dir/name``, ``"runs/run"`` by default. With the path of a file as `config`, `name` is
        the file's name without suffix by default.
    epochs, steps : int, optional
        Length of the run: passes over the training data, or minibatches of all replicas together. At most one of
        them may be given; 10 epochs by default.
    seed : int, optional
        Determines the order of the data, and the initial parameters of a model from `config`; 0 by default.
    deterministic : bool, optional
        Make the whole run independent of the number of servers and of timing; False by default. Libraries round
        differently with other numbers of threads: set OMP_NUM_THREADS where bits count.
    metrics : sequence of str, optional
        Figures of evaluations beside loss and accuracy: names in `mpidl.metrics.METRICS`, or ``"module:function"``.
    target : str, optional
        Stop when an evaluation fulfils a comparison, such as ``"validation_loss < 0.1"``; never by default.
    target_accuracy : float, optional
        Stop when the accuracy of evaluations, in (0, 1], reaches this value; never by default.
    patience : int, optional
        Stop when the figure of `target`, or else the loss of evaluations, has not become better for so many epochs;
        never by default.
    record : bool, optional
        Record the interleaving of a run on ranks, for ``mpidl simulate --replay``; False by default.
    report : float, optional
        Seconds between two reports where the output is a log and not a terminal, 10 by default.
    terminate_on_nan : bool, optional
        End the run when a loss is NaN or infinite; True by default.
    groups : sequence of Group or mapping, optional
        Parameters that are trained in ways of their own, such as ``{"match": "*.bias", "rate": 0.1}``; the first group
        that matches a tensor's name counts. No groups by default.
    checkpoint_every : float, optional
        Seconds between checkpoints, 60 by default.
    keep : int, optional
        Number of checkpoints to keep besides the first and the last, 3 by default.
    resume : bool
        Continue from the newest checkpoint in the run's directory.
    device : str, DeviceSection or mapping, optional
        Where a network computes: "auto", "cpu" or "cuda", or a whole section ``[device]``; "auto" by default.
    debug : DebugSection or mapping, optional
        Makes workers slow; nothing by default.

    Returns
    -------
    dict
        The run's summary, on every rank.

    Raises
    ------
    UsageError
        An argument or a key of `config` is wrong, or the parts don't fit together; one line.
    MpidlError
        The run failed; one line.

    Examples
    --------
    >>> network = Network([Dense(128, activation="relu"), Dense(10)], input_shape=(8, 8))
    >>> summary = train(network, Digits(), algorithm=Downpour(n_push=1), rule=Adagrad(0.01), epochs=30)
    >>> summary = train(config="jobs/digits.toml", steps=100)
    """
    if imported_by_worker():
        # The process that trains says in one line what is wrong with the script.
        raise SystemExit(1)
    tell_once()
    section = {
        "name": name, "dir": None if dir is None else str(dir), "epochs": epochs, "steps": steps, "seed": seed,
        "deterministic": deterministic, "metrics": None if metrics is None else list(metrics), "target": target,
        "target_accuracy": target_accuracy, "patience": patience, "record": record, "report": report,
        "terminate_on_nan": terminate_on_nan,
    }  # fmt: skip
    keys = {
        "run": section,
        "data": {
            "batch": batch,
            "portion": portion,
            "validation": validation,
            "augment": _plain(augment),
            "normalise": _plain(normalise),
        },
        "model": {
            "group": None if groups is None else [_plain(group) for group in groups],
            "initial": None if initial is None else str(initial),
        },
        "topology": {"servers": servers, "partitions": partitions},
        "checkpoint": {"every": checkpoint_every, "keep": keep},
        "device": {"kind": device if isinstance(device, str) else None},
    }
    sections = {
        "model": None if model is None else python_model(loss),
        "rate": _plain(rate),
        "device": None if isinstance(device, str) else _plain(device),
        "debug": _plain(debug),
    }

    def resolve() -> Config:
        _check_objects(data, algorithm, rule)
        source = None if data is None else source_of(data)
        found = _resolve(config, sections, keys, source, algorithm, rule)
        environment.prepare_mpi(found.topology.transport, found.data.keep == "distributed")
        return found

    resolved = together(resolve)

    def make(config: Config, checkpoint: Checkpoint | None) -> Job:
        dataset = opened(config.data_source if data is None else data)
        built = build_model(config, dataset) if model is None else own_model(model, config, loss)
        job = Job(config, dataset, built, checkpoint)
        job.shared = model is not None
        jobs.append(job)
        return job

    jobs: list[Job] = []
    with held():
        run = resolved.run.directory
        summary = start(resolved, make, run if resume else None)
        if resume and model is not None and not jobs:
            # Nothing was left to train.
            restore(make(replace(resolved, model=replace(resolved.model, initial=None)), None), latest(run))
        for job in jobs:
            job.original.finish()
    return summary


def _check_objects(data: Any, algorithm: Any, rule: Any) -> None:
    """Raise UsageError for an argument of another type than the one that no section of a configuration describes."""
    if data is not None and not isinstance(data, Dataset) and (isinstance(data, type) or not hasattr(data, "open")):
        expected = "a Dataset or a source, such as mpidl.Digits() or mpidl.Arrays((x, y), (test_x, test_y))"
        raise UsageError(f"data: expected {expected}, found {_found(data)}")
    for key, value, cls, example in (
        ("algorithm", algorithm, Algorithm, "mpidl.Downpour()"),
        ("rule", rule, Rule, "mpidl.Adagrad()"),
    ):
        if value is not None and not isinstance(value, cls):
            raise UsageError(f"{key}: expected one such as {example}, found {_found(value)}")


def python_model(loss: Any) -> dict[str, Any]:
    """Return the section ``[model]`` of a model that a script gives; a loss that isn't a name stays with the script."""
    return {"factory": PYTHON_MODEL} | ({"loss": loss} if isinstance(loss, str) else {})


def _found(value: Any) -> str:
    return kind_of(value) if hasattr(value, "__len__") and not isinstance(value, str) else quoted(value)


def _plain(section: Any) -> Any:
    """Return a section that was given as a dataclass or as a mapping as a mapping."""
    if section is None or isinstance(section, Mapping):
        return section
    return {key: value for key, value in asdict(section).items() if value is not None}


def _resolve(
    config: Config | str | Path | Mapping[str, Mapping[str, Any]] | None,
    sections: Mapping[str, Any],
    keys: Mapping[str, Mapping[str, Any]],
    source: Source | None,
    algorithm: Algorithm | None,
    rule: Rule | None,
) -> Config:
    """Return a configuration in which whole sections, single keys and objects take the place of those of `config`.

    What is None takes the place of nothing.
    """
    if isinstance(config, Config):
        source, algorithm, rule = source or config.data_source, algorithm or config.algorithm, rule or config.rule
        values: dict[str, Any] = {**config.to_dict(), "data": _plain(config.data)}
    else:
        values = read(config) if isinstance(config, str | Path) else dict(config or {})
    values |= {name: section for name, section in sections.items() if section is not None}
    for name, table in keys.items():
        given = {key: value for key, value in table.items() if value is not None}
        values[name] = set_keys(values.get(name, {}), name, given)
    return from_dict(values, data_source=source, algorithm=algorithm, rule=rule)
