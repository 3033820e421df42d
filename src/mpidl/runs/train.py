"""Training from a Python script."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from mpidl.algorithms import Algorithm
from mpidl.config import PYTHON_MODEL, Config, source_of
from mpidl.data import Private, opened
from mpidl.data.given import Given, as_source
from mpidl.data.hdf5_files import closing
from mpidl.data.loaders import of_loaders
from mpidl.data.workers import imported_by_worker
from mpidl.errors import UsageError, quoted
from mpidl.job.build import TRAINED_WITH, build_model, own_model, with_model
from mpidl.job.callbacks import Callbacks
from mpidl.job.checkpoints import identify, restore
from mpidl.job.checks import of_data, of_samples
from mpidl.job.job import Job, Script
from mpidl.launch import environment
from mpidl.launch.signals import discard, held
from mpidl.loggers import Logger
from mpidl.loggers.calls import check as check_loggers
from mpidl.nn.model import Model, TorchModule
from mpidl.report.summary import Summary
from mpidl.report.text import resumption
from mpidl.rules import Rule
from mpidl.runs.agreement import among, together
from mpidl.runs.keywords import Section, check, check_parts, resolve, signature
from mpidl.runs.process import end_job_together, end_stopped
from mpidl.runs.start import begun, run
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import latest

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpidl.runs.keyword_types import Keywords


def train(
    model: Model | TorchModule | None = None,
    data: Given | None = None,
    *,
    loss: str | Callable[[Any, Any], Any] | None = None,
    config: Config | str | Path | Mapping[str, Mapping[str, Any]] | None = None,
    algorithm: Algorithm | str | Section | None = None,
    rule: Rule | str | Section | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[..., object]] = (),
    loggers: Sequence[Logger | str] = (),
    comm: MPI.Intracomm | None = None,
    on_interrupt: Literal["exit", "return"] = "exit",
    **keywords: Unpack[Keywords],
) -> Summary:
    """Train a model on the ranks of the MPI job that runs this script, or in this process alone.

    Every rank runs the same script and calls this function with the same arguments; each rank's role is decided
    here. It begins with the values that the model has; afterwards the model holds the trained parameters on every rank.

    Parameters
    ----------
    model : Model or torch.nn.Module, optional
        A `Network`, a PyTorch module, a `mpidl.jax.JaxModel`, or any object with ``parameters`` and
        ``loss_and_gradient(batch)``. Replaces the layers or the factory in the section ``[model]`` of `config`.
    data : Dataset or Source, or list of them, optional
        For example ``mpidl.data.Idx("data/fashion-mnist")``, ``Arrays((x, y), (test_x, test_y))``, or a dataset of
        your own by ``Indexed(train, test)``. Replaces the source that ``[data]`` of `config` names. Of a list, each
        belongs to one worker, as ``data.private`` says. A ``torch.utils.data.DataLoader``, or a tuple of those of
        training, test and validation data, keeps its sampler, its workers and its collate function.
    loss : str or callable, optional
        ``model.loss``. For a PyTorch module: a name in `torch.nn.functional`, or a function of (outputs, targets).
    config : Config, str, Path or mapping, optional
        A configuration, the path of a TOML file, or a mapping of sections, such as
        ``{"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}``.
    algorithm : Algorithm, str or mapping, optional
        Replaces the section ``[algorithm]``; ``Downpour()`` by default. A string is the algorithm's name.
    rule : Rule, str or mapping, optional
        Replaces the section ``[server]``. A string is the rule's name, or "default": the algorithm's own, which is
        ``Adagrad(0.01)`` for most. ``lr`` beside a name, or a mapping without a rate, is the rule's rate.
    resume : bool
        Continue from the newest checkpoint in the run's directory.
    callbacks : sequence of callable
        Each is called on the coordinator's process after each report and evaluation, with the record that
        ``metrics.jsonl`` gets, or with the record and the model's present values: a dict of arrays by their names.
        Other ranks may wait for it. The run ends with one line if it raises an error.
    loggers : sequence of Logger or str
        Objects that get the run's records and events, also on the coordinator's process alone, but whose errors end no
        run. Names, as in ``run.loggers``, replace those of `config`.
    comm : mpi4py.MPI.Intracomm, optional
        Communicator of the ranks that train, all of which call this function; other ranks don't. ``MPI.COMM_WORLD`` by
        default.
    on_interrupt : {"exit", "return"}
        What follows when a signal (SIGINT, SIGTERM, SIGUSR1, SIGHUP) has stopped the run, which has then saved. By
        default the process exits with code 75, as the command does, by SystemExit (in an interactive session, by
        KeyboardInterrupt). With "return", the summary is returned, and its item "interrupted" is True.
    **keywords
        Each replaces one key, such as ``epochs``, ``batch``, ``servers``, ``name``, ``checkpoint_every`` and
        ``device``, or one section, given as an object or a mapping. The manual has a table of keywords on the page
        "From Python", and describes the keys on the page "Configuration". None leaves a key as it is.

    Returns
    -------
    Summary
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
    end_job_together()
    data, of_loader = of_loaders(data)
    given, keywords = as_source(data), cast("Keywords", {**of_loader, **keywords})
    if isinstance(given, Private):
        keywords["private"] = True

    def resolved_here() -> Config:
        check(keywords, inspect.signature(train).parameters, rule)
        if on_interrupt not in ("exit", "return"):
            raise UsageError(f"on_interrupt: expected 'exit' or 'return', found {quoted(on_interrupt)}")
        check_parts(given, algorithm, rule)
        Callbacks(callbacks)
        check_loggers(loggers)
        source = None if given is None else source_of(given)
        found = resolve(config, _section(model, loss), source, algorithm, rule, keywords)
        if named := tuple(each for each in loggers if isinstance(each, str)):
            found = replace(found, run=replace(found.run, loggers=named))
        topology = found.topology
        environment.prepare_mpi(topology.transport, found.data.keep == "distributed", topology.survive == "auto")
        return found

    with among(comm):
        resolved = together(resolved_here)

    def make(config: Config, checkpoint: Checkpoint | None) -> Job:
        dataset = opened(config.data_source if given is None else given)
        config = with_model(config, dataset)
        built = build_model(config, dataset) if model is None else own_model(model, config, loss)
        if loss is not None:
            TRAINED_WITH[model] = loss
        models.append(built)
        lent.callback(built.finish)
        objects = [each for each in loggers if not isinstance(each, str)]
        script = Script(model is not None, Callbacks(callbacks), objects)
        return Job.of(config, dataset, built, checkpoint, script)

    models: list[Any] = []
    with among(comm), held(), closing(), ExitStack() as lent:
        earlier = begun(resolved)
        continued = resolved.run.directory if resume else earlier
        summary = run(resolved, continued, make)
        if continued is not None and model is not None and not models:
            # Nothing was left to train.
            _restore(make(resolved, checkpoint := latest(continued)), checkpoint)
        if summary.get("interrupted"):
            discard()
            if on_interrupt == "exit":
                end_stopped(resumption(summary["run_dir"], resolved.run.name))
    return summary


train.__dict__["__signature__"] = signature(train)


def _restore(job: Job, checkpoint: Checkpoint) -> None:
    """Give a job's model the values of a finished run's checkpoint, which must be of the same data."""
    samples = of_samples(job.given) if job.config.data.keep == "files" else {}
    restore(identify(job, {**of_data(job.given), **samples}), checkpoint)


def _section(model: Any, loss: Any) -> dict[str, Any]:
    """Return the keys of ``[model]`` that a script gives; a loss that isn't a name stays with the script."""
    section = {"factory": PYTHON_MODEL} if model is not None else {}
    if isinstance(loss, str):
        section["loss"] = loss
    elif loss is not None and model is None:
        raise UsageError(f"loss: found {quoted(loss)}, expected a name: a function needs a model beside it")
    return section
