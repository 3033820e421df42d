"""Starting a run: on the ranks of this MPI world, or in this process if it is alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from mpidl.config import Config
from mpidl.job.build import build
from mpidl.job.checks import of_config
from mpidl.job.job import Job
from mpidl.launch.output import say
from mpidl.runs.agreement import by_first_rank, check_same, communicator, ranks
from mpidl.runs.resuming import choose, finished
from mpidl.runs.uncaught import on_all_ranks
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.lock import Lock
from mpidl.storage.position import Position


def run(config: Config, resume: Path | None = None) -> dict[str, Any]:
    """Train the model of a configuration.

    Parameters
    ----------
    config : Config
    resume : Path, optional
        Directory of a run, ``runs/NAME``, to resume from its newest checkpoint. A run without one begins anew there; of
        a finished run, the summary is returned.

    Returns
    -------
    dict
        The run's summary, on every rank; ``interrupted`` is True if a signal ended it early.

    Raises
    ------
    MpidlError
        The run failed; the message is one line.
    """
    return start(config, build, resume)


def start(
    config: Config, make: Callable[[Config, Checkpoint | None], Job], resume: Path | None = None
) -> dict[str, Any]:
    """Run a job and, before it, the algorithm's warm start.

    `make` returns the job of a configuration and of the checkpoint to resume from, if any; `resume` is that of `run`.
    Return the run's summary, or that of the warm start if a signal ended that.
    """
    with on_all_ranks(), ExitStack() as locks:
        resume = None if resume is None else _named(resume)
        config = _in_directory(config, resume)
        described = {**of_config(config), "--resume": "not given" if resume is None else str(resume)}
        check_same("configuration", described, *ranks())
        if resume is not None and (done := finished(config, resume)) is not None:
            return done
        if resume is not None:
            by_first_rank(partial(_lock, resume, locks))
        checkpoint = None if resume is None else choose(resume)
        first = warm_start(config, None if checkpoint is None else checkpoint.position)
        if first is not None:
            summary = _start(first, make, checkpoint, continues=resume is not None)
            if summary["interrupted"]:
                return summary
            resume = Path(summary["run_dir"])
            config, checkpoint = _in_directory(config, resume), choose(resume)
        return _start(config, make, checkpoint, continues=resume is not None)


def _named(run: Path) -> Path:
    """Return the directory of a run with the run's name in it, which ``.`` lacks."""
    return run if run.name not in ("", "..") else run.resolve()


def _lock(run: Path, locks: ExitStack) -> None:
    """Keep other runs away from a run's directory, before its checkpoints are looked through."""
    if run.is_dir():
        locks.callback(Lock(run).close)


def warm_start(config: Config, position: Position | None) -> Config | None:
    """Return the configuration of the run that comes before the algorithm's own; None if it is done or there is none.

    `position` is that of the checkpoint that the run resumes from.
    """
    first = config.algorithm.warm_start_run()
    if first is None:
        return None
    if position is not None and (position.state is not None or position.epoch >= first.epochs):
        return None
    run = dataclasses.replace(config.run, epochs=first.epochs, steps=None)
    return dataclasses.replace(config, algorithm=first.algorithm, rule=first.rule, run=run)


def _in_directory(config: Config, directory: Path | None) -> Config:
    if directory is None:
        return config
    return dataclasses.replace(
        config, run=dataclasses.replace(config.run, dir=str(directory.parent), name=directory.name)
    )


def _start(
    config: Config, make: Callable[[Config, Checkpoint | None], Job], checkpoint: Checkpoint | None, continues: bool
) -> dict[str, Any]:
    def build_job() -> Job:
        return dataclasses.replace(make(config, checkpoint), continues=continues)

    if (comm := communicator()) is None:
        from mpidl.runs.one_process import OneProcess

        if (partitions := config.topology.partitions) > 1:
            say(f"topology.partitions: {partitions}, but this process is alone: it trains the whole model")
        return OneProcess(build_job()).run()
    from mpidl.runs.ranks import run

    return run(config, build_job, comm)
