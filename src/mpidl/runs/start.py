"""Starting a run, on the ranks of this MPI world or in this process, anew or where an earlier one has stopped."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from mpidl.config import Config, load
from mpidl.config.configuration import read
from mpidl.errors import MpidlError, UsageError, shown
from mpidl.history import Run
from mpidl.job.build import build
from mpidl.job.checks import of_config
from mpidl.job.job import Job
from mpidl.launch import script
from mpidl.launch.output import say, terminate
from mpidl.report.recorder import record_event
from mpidl.report.summary import Summary
from mpidl.runs.agreement import by_first_rank, check_same, communicator, on_all_ranks, ranks, together
from mpidl.runs.features import mirrors
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good, steps, sweep
from mpidl.storage.lock import Lock
from mpidl.storage.position import Position


def run(
    config: Config, resume: Path | None = None, make: Callable[[Config, Checkpoint | None], Job] = build
) -> Summary:
    """Train the model of a configuration and, before that, do the algorithm's warm start.

    Parameters
    ----------
    config : Config
    resume : Path, optional
        Directory of a run, ``runs/NAME``, to resume from its newest checkpoint. A run without one begins anew there; of
        a finished run, the summary is returned.
    make : callable
        Returns the job of a configuration and of the checkpoint to resume from, if any.

    Returns
    -------
    Summary
        The run's summary, on every rank, or that of the warm start if a signal ended that; ``interrupted`` is True if a
        signal ended it early.

    Raises
    ------
    MpidlError
        The run failed; the message is one line.
    """
    with on_all_ranks(), ExitStack() as locks:
        if resume is not None and resume.name in ("", ".."):
            resume = resume.resolve()  # which has the run's name in it
        config = _in_directory(config, resume)
        described = {**of_config(config), "--resume": "not given" if resume is None else str(resume)}
        check_same("configuration", described, *ranks())
        checkpoint = None
        if resume is not None:
            if (done := finished(config, resume)) is not None:
                return done
            by_first_rank(partial(_lock, resume, locks))
            checkpoint = choose(resume)
        first = warm_start(config, None if checkpoint is None else checkpoint.position)
        if first is not None:
            summary = _start(first, make, checkpoint, continues=resume is not None)
            if summary["interrupted"]:
                return summary
            resume = Path(summary["run_dir"])
            config, checkpoint = _in_directory(config, resume), choose(resume)
        return _start(config, make, checkpoint, continues=resume is not None)


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
    run = replace(config.run, epochs=first.epochs, steps=None)
    return replace(config, algorithm=first.algorithm, rule=first.rule, run=run)


def _in_directory(config: Config, run: Path | None) -> Config:
    return config if run is None else replace(config, run=replace(config.run, dir=str(run.parent), name=run.name))


def _start(
    config: Config, make: Callable[[Config, Checkpoint | None], Job], checkpoint: Checkpoint | None, continues: bool
) -> Summary:
    def build_job() -> Job:
        return replace(make(config, checkpoint), continues=continues)

    if (comm := communicator()) is None:
        from mpidl.runs.one_process import OneProcess

        if (partitions := config.topology.partitions) > 1:
            say(f"topology.partitions: {partitions}, but this process is alone: it trains the whole model")
        return OneProcess(build_job()).run()
    from mpidl.runs import ranks as on_ranks

    return on_ranks.run(config, build_job, comm)


def choose(run: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a run that is as it was saved, the same one on every rank; None if there is none.

    Lines on stderr name each newer one that is skipped, and entries of the directory that aren't checkpoints. Raise
    MpidlError if there are only damaged ones, or a file can't be read.
    """
    rank, gather = ranks()
    checkpoints = run / "checkpoints"

    def look() -> tuple[list[str], int]:
        return sweep(checkpoints), max(steps(checkpoints), default=-1)

    strangers, newest = by_first_rank(look)
    if strangers:
        _say(f"{checkpoints}: no checkpoints of mpidl, which stay as they are: {shown(', '.join(strangers))}")
    if not _mirrored(run, newest) and newest < 0:
        _say(f"{run}: no checkpoint yet, starting from the beginning")
        return None
    path, lines = newest_good(run, rank, gather)
    for line in lines:
        _say(line)
    if lines and _mirrored(run, int(path.name)):
        path, _ = newest_good(run, rank, gather)
    return together(lambda: Checkpoint(path))


def _mirrored(run: Path, newest: int) -> bool:
    """Return whether a mirror of a later step than the newest checkpoint has been made one; collective."""
    step, lines = mirrors.recover(run, newest, *ranks())
    for line in lines:
        _say(line)
    if step is not None:
        _say(f"{run}: going on from the mirror of step {step} in the nodes' memory")
        if ranks()[0] == 0:
            record_event(run, "checkpoint", 0, "coordinator", step=step, recovered=True)
    return step is not None


def begun(config: Config) -> Path | None:
    """Begin a training of a script, on every rank; return the directory of its run if it had begun before, else None.

    Raise UsageError if that run is finished and was trained otherwise than is asked for now: it isn't this training's.
    """
    running = script.current()
    if running is None:
        return None

    def look() -> Path | None:
        run = running.begin(config.run.directory)
        if run is not None and not (Run(run).summary or {}).get("interrupted", True):
            _check_keys(config, run)
        return run

    with on_all_ranks():
        return by_first_rank(look)


def _check_keys(config: Config, run: Path) -> None:
    saved, asked = read(run / "config.toml", of_run=True), tomllib.loads(config.to_toml())
    if not (config.model.layer or config.model.factory):
        # What the algorithm has made of the model isn't asked for.
        asked["model"] = saved.get("model", {}) | asked["model"]
    for section in ("data", "model", "algorithm", "server", "rate"):
        before, now = saved.get(section, {}), asked.get(section, {})
        for key in [*now, *before]:
            if before.get(key) != now.get(key):
                raise UsageError(
                    f"{section}.{key}: {now.get(key, 'none')}, but {run}, where this training of the script would "
                    f"continue, has {before.get(key, 'none')}: different trainings need different names (name=...)"
                )


def finished(config: Config, run: Path) -> Summary | None:
    """Return the summary of a run that has been trained to its end; None if something is left to do.

    `config` is what is asked for now: a run that is to be longer than it was is not at its end.
    """

    def look() -> Summary | None:
        summary = Run(run).summary
        if summary is None or not isinstance(summary.get("epochs"), int | float):
            return None
        try:
            before = load(run / "config.toml", of_run=True).run
        except MpidlError:
            return None
        asked, done = (
            (name, run.epochs, run.steps, run.target, run.patience)
            for name, run in ((config.algorithm.name, config.run), (summary.get("algorithm"), before))
        )
        return cast("Summary", summary) if asked == done and not summary.get("interrupted") else None

    summary = by_first_rank(look)
    if summary is not None:
        _say(f"{run}: finished, {summary['epochs']:.4g} epochs; nothing is left to train")
    return summary


def _say(line: str) -> None:
    if ranks()[0] == 0:
        say(line, terminate)
