"""A run on disk."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from mpidl.errors import UsageError
from mpidl.history.columns import Columns
from mpidl.history.defaults import defaults, flat
from mpidl.history.html import as_html
from mpidl.history.lines import EVENT, RECORD, Lines, RankStatus, read_object
from mpidl.paths import read_text, run_directory
from mpidl.schema import parse_toml
from mpidl.storage.lock import is_locked

#: The file by which a directory is that of a run, and those of its records and events.
CONFIG, METRICS, EVENTS = "config.toml", "metrics.jsonl", "events.jsonl"

#: Seconds after which a run that goes on has written its status again, by the clocks of two hosts.
FRESH = 20.0


class Run:
    """A run's files, each of them read once, when something of it is asked for; `open` again for later records.

    It may be running, or have ended in any way. A notebook shows its last figures and its curve.

    Attributes
    ----------
    directory : Path
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory.absolute().name

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration with all its keys, as a mapping of sections."""
        path = self.directory / CONFIG
        try:
            return parse_toml(read_text(path, of_run=True).decode())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the configuration's keys, such as ``{"run.seed": 0}``; None where there is none."""
        return defaults(self.config)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The keys that differ from their defaults: ``{"data.batch": (64, 128)}`` has the value and the default."""
        known = self.defaults
        return {name: (value, known.get(name)) for name, value in flat(self.config).items() if value != known.get(name)}

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The figures of the whole run; None if it hasn't ended, or has failed."""
        return self._objects["summary.json"][0]

    @cached_property
    def status(self) -> dict[str, Any] | None:
        """What each rank did when the run last wrote it; None if it has never done so."""
        return self._objects["status.json"][0]

    @cached_property
    def ranks(self) -> list[RankStatus]:
        """The ranks in the status, without malformed ones."""
        listed = (self.status or {}).get("ranks")
        found = []
        for each in listed if isinstance(listed, list) else []:
            with suppress(msgspec.ValidationError):
                found.append(msgspec.convert(each, RankStatus))
        return found

    @cached_property
    def metrics(self) -> Columns:
        """The run's records: "time" in seconds of training, "samples", "epoch", "train_loss" and so on."""
        return Columns(self.record_lines())

    @cached_property
    def events(self) -> Columns:
        """The run's events: "time" in seconds since the epoch, "event" with its kind, "rank", "role" and details."""
        return Columns(self._events, [self.event_list])

    @cached_property
    def event_list(self) -> list[dict[str, Any]]:
        """The run's events, each as it was written."""
        return self._events.read()

    @cached_property
    def _events(self) -> Lines:
        return self.event_lines()

    def record_lines(self) -> Lines:
        """Return the run's records as they are written, from the first on."""
        return Lines(self.directory / METRICS, RECORD)

    def event_lines(self) -> Lines:
        """Return the run's events as they are written, from the first on."""
        return Lines(self.directory / EVENTS, EVENT)

    @property
    def unread(self) -> list[str]:
        """Notes on values of its summary and its status that are left out."""
        return [note for _, notes in self._objects.values() for note in notes]

    @property
    def notes(self) -> list[str]:
        """Notes on lines and numbers of its files that are left out because they can't be shown."""
        return [*self.metrics.notes, *self.events.notes, *self.unread]

    @cached_property
    def state(self) -> str:
        """How the run is: "running", "finished", "stopped" by a signal after saving, "failed" or "killed"."""
        if self.summary is not None:
            return "stopped" if self.summary.get("interrupted") else "finished"
        locked = is_locked(self.directory)
        if locked if locked is not None else self._is_fresh():
            return "running"
        return "failed" if self._failed() else "killed"

    def _is_fresh(self) -> bool:
        """Return whether the status is so new that the run goes on."""
        written = (self.status or {}).get("time")
        return isinstance(written, int | float) and abs(time.time() - written) < FRESH

    def _failed(self) -> bool:
        """Return whether the last event is that of a rank that has raised an error."""
        last = {name: values[-1] for name, values in self.events.items() if self.events.rows}
        return isinstance(last.get("cause"), str) and str(last.get("event")) == "failure"

    @cached_property
    def _objects(self) -> dict[str, tuple[dict[str, Any] | None, list[str]]]:
        """The content of each file of JSON, None if there is none or it isn't an object, with notes."""
        return {name: read_object(self.directory / name) for name in ("summary.json", "status.json")}

    def __repr__(self) -> str:
        return f"<run {str(self.directory)!r}, {self.state}, {self.metrics.rows} records>"

    def _repr_html_(self) -> str:
        return as_html(self.name, self.state, self.summary, self.metrics, self.notes)


def open(run: str | Path) -> Run:
    """Return a run's files as values and columns of NumPy arrays.

    Parameters
    ----------
    run : str or Path
        The run's directory, such as ``"runs/digits"``.

    Raises
    ------
    UsageError
        It isn't the directory of a run.
    """
    return Run(run_directory(run, CONFIG))
