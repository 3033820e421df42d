"""What a run is resumed from: one rank looks, and tells the others."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from mpidl.config import Config, load
from mpidl.config.configuration import read
from mpidl.errors import MpidlError, UsageError, shown
from mpidl.history import Run
from mpidl.launch import script
from mpidl.launch.output import say, terminate
from mpidl.report.recorder import record_event
from mpidl.runs.agreement import by_first_rank, ranks, together
from mpidl.runs.features import mirrors
from mpidl.runs.uncaught import on_all_ranks
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good, steps, sweep


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


def finished(config: Config, run: Path) -> dict[str, Any] | None:
    """Return the summary of a run that has been trained to its end; None if something is left to do.

    `config` is what is asked for now: a run that is to be longer than it was is not at its end.
    """

    def look() -> dict[str, Any] | None:
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
        return summary if asked == done and not summary.get("interrupted") else None

    summary = by_first_rank(look)
    if summary is not None:
        _say(f"{run}: finished, {summary['epochs']:.4g} epochs; nothing is left to train")
    return summary


def _say(line: str) -> None:
    if ranks()[0] == 0:
        say(line, terminate)
