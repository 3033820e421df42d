"""A run that is watched: what its files say, look by look."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpidl.errors import MpidlError, UsageError
from mpidl.history import Run
from mpidl.history import open as opened
from mpidl.history.defaults import numbers
from mpidl.history.html import CURVES
from mpidl.history.lines import RankStatus
from mpidl.history.run import CONFIG
from mpidl.launch.script import NOTE
from mpidl.report.text import continuing
from mpidl.storage.checkpoints import steps

#: The directory of runs that a configuration doesn't give another one, and that of simulations within it.
RUNS, VIRTUAL = "runs", "virtual"
#: Events that are kept.
EVENTS = 50
#: Seconds for which a run must have no process before it counts as dead: another may be taking it over.
TAKEOVER = 3.0
#: States of a run that has ended without a summary.
DEAD = ("failed", "killed")


class Watched:
    """A run's files as they were at the last `look`.

    Attributes
    ----------
    run : Run
    state : str
        That of `Run.state`; of a run that has just died, "running" for some seconds.
    status : mapping
        The last ``status.json`` that could be read; empty if there was none.
    ranks : sequence of RankStatus
        What each rank does, by that status.
    quiet : float
        Seconds since it changed, as far as this process has seen.
    curves : dict of str to list
        For each figure of a curve, the samples and the value at each record that has it.
    events : sequence of dict
        The last ones.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._records, self._events = Run(directory).record_lines(), Run(directory).event_lines()
        self.status: Mapping[str, Any] = {}
        self.ranks: Sequence[RankStatus] = ()
        self.curves: dict[str, list[tuple[float, float]]] = {name: [] for name in CURVES}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self.state, self.quiet, self.died = "", 0.0, False
        self._changed = self._alive = time.monotonic()
        self.look()

    def look(self) -> None:
        """Read what has been written since the last look."""
        now = time.monotonic()
        self.run = Run(self.directory)
        if (status := self.run.status) is not None and status != self.status:
            self.status, self.ranks, self._changed = status, self.run.ranks, now
        self.quiet = now - self._changed
        self._extend()
        self.events += self._events.read()
        self._judge(self.run.state, now)

    def _judge(self, state: str, now: float) -> None:
        """Take over a run's state; the death of one that was running must last."""
        if state not in DEAD:
            self._alive, self.died = now, False
        elif self.state == "running" and now - self._alive < TAKEOVER:
            return
        elif self.state == "running":
            self.died = True
        self.state = state

    def _extend(self) -> None:
        records = self._records.read()
        for name, curve in self.curves.items():
            if self._records.anew:
                curve.clear()
            *above, last = name.split(".")
            for record in records:
                value = (record.get(above[0]) or {} if above else record).get(last)
                if isinstance(value, int | float):
                    curve.append((record["samples"], value))

    @property
    def curve(self) -> tuple[str, Sequence[tuple[float, float]]]:
        """The name and the points of the most telling figure that the run has."""
        return next(((name, points) for name, points in self.curves.items() if points), ("", []))

    @property
    def figures(self) -> dict[str, float]:
        """The numbers of the run's last record; those of its summary, when there is one, which have the same names."""
        return numbers(self.run.summary or self.status.get("record"))

    @property
    def notes(self) -> list[str]:
        """Notes on what is left out of the files."""
        return [*self._records.notes, *self._events.notes, *self.run.unread]

    def advice(self) -> str:
        """Return what to do with a run that has ended too early."""
        if self.directory.absolute().parent.name == VIRTUAL:
            return "simulations can't be resumed"
        saved: list[int] = []
        with suppress(MpidlError):
            saved = steps(self.directory / "checkpoints")
        if not saved:
            return "no checkpoint was saved: start it again"
        command = "run" if (self.directory / NOTE).exists() else "train"
        return f"step {saved[-1]} is saved; {continuing(command, self.directory, len(self.ranks))}"


def find(given: Path | None) -> Path:
    """Return the directory of the run to watch: the one given, or the newest run in it or in `RUNS`.

    Raise UsageError if there is none.
    """
    place = Path(RUNS) if given is None else given
    if (place / CONFIG).is_file():
        return opened(place).directory
    found = [path.parent for pattern in (f"*/{CONFIG}", f"{VIRTUAL}/*/{CONFIG}") for path in place.glob(pattern)]
    if not found:
        what = "no run in it" if place.is_dir() else "no directory"
        raise UsageError(f"{place}: {what}, expected the directory of a run, such as runs/digits")
    return max(found, key=_written)


def _written(run: Path) -> float:
    """Return when a run was written last, in seconds since the epoch."""
    times = [0.0]
    for name in (CONFIG, "status.json", "metrics.jsonl"):
        with suppress(OSError):
            times.append((run / name).lstat().st_mtime)
    return max(times)
