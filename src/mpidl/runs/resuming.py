"""What a run is resumed from: one rank looks, and tells the others."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mpidl.config import Config, load
from mpidl.errors import MpidlError, UsageError
from mpidl.launch import environment
from mpidl.launch.output import say, terminate
from mpidl.launch.script import current
from mpidl.runs.agreement import by_first_rank, ranks, together
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good, steps, sweep


def choose(run: Path) -> Checkpoint | None:
    """Return the newest checkpoint of a run that is as it was saved, the same one on every rank; None if there is none.

    A line on stderr names each newer one that is passed over. Raise MpidlError if there are only damaged ones, or a
    file can't be read.
    """
    rank, gather = ranks()

    def look() -> bool:
        sweep(run / "checkpoints")
        return bool(steps(run / "checkpoints"))

    if not by_first_rank(look):
        _say(f"{run}: no checkpoint yet, beginning anew")
        return None
    path, lines = newest_good(run, rank, gather)
    for line in lines:
        _say(line)
    return together(lambda: Checkpoint(path))


def begun(run: Path) -> Path | None:
    """Begin a script's training with the directory ``runs/NAME``, on every rank.

    Return the directory of its run if it had begun before, when the script ran in the same job; else None.
    """
    script = current()
    return None if script is None else by_first_rank(partial(script.begin, run))


def check_keys(config: Config, run: Path) -> None:
    """Raise UsageError if a finished run was trained otherwise than a script's training asks for: it isn't its own."""
    saved, asked = (tomllib.loads(text) for text in ((run / "config.toml").read_text(), config.to_toml()))
    for section in ("data", "model", "algorithm", "server", "rate"):
        before, now = saved.get(section, {}), asked.get(section, {})
        for key in [*now, *before]:
            if before.get(key) != now.get(key):
                raise UsageError(
                    f"{section}.{key}: {now.get(key, 'none')}, but {run}, where this training of the script would "
                    f"continue, has {before.get(key, 'none')}: trainings that differ need names of their own (name=...)"
                )


def finished(config: Config, run: Path) -> dict[str, Any] | None:
    """Return the summary of a run that has been trained to its end; None if something is left to do.

    `config` is what is asked for now: a run that is to be longer than it was is not at its end.
    """

    def look() -> dict[str, Any] | None:
        try:
            summary = msgspec.json.decode((run / "summary.json").read_bytes(), type=dict[str, Any])
            before = load(run / "config.toml").run
        except (OSError, ValueError, MpidlError):
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
    if environment.world().rank == 0:
        say(line, terminate)
