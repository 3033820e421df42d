"""What a run is resumed from: one rank looks, and tells the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mpidl.config import Config, load
from mpidl.errors import MpidlError
from mpidl.launch import environment
from mpidl.launch.output import say, terminate
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
