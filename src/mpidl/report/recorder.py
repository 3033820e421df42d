"""A run's directory and its files: configuration, records, events, status and summary."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import FileIO
from itertools import count
from json import dumps
from pathlib import Path
from typing import Any

import msgspec

from mpidl.config import Config
from mpidl.errors import MpidlError, UsageError, shown
from mpidl.history.lines import EVENT, RECORD, Lines, decoded
from mpidl.launch import environment, marks, script
from mpidl.loggers import Logger
from mpidl.loggers.calls import Loggers
from mpidl.paths import append_line, appending, existing, open_regular, read_text, regular, replacing, write_whole
from mpidl.report.summary import Summary
from mpidl.schema import MALFORMED
from mpidl.storage.files import cannot_read
from mpidl.storage.lock import Lock
from mpidl.storage.removal import remove, remove_file
from mpidl.version import VERSION

#: Name of the file that the first rank to fail leaves.
FAILED = ".failed"
#: Seconds between the lines of two ranks that fail together and can't agree on the first, and up to the last one.
APART, AT_MOST = 0.5, 5.0
#: Files that a run makes in a new directory.
FILES = (".lock", ".mirrors", "config.toml", script.NOTE, "metrics.jsonl", "events.jsonl", "status.json")


def _is_record(content: bytes) -> bool:
    """Return whether a content is a record, or the zeros that a crash has left of one."""
    with suppress(*MALFORMED):
        return not content.strip(b"\0") or isinstance(msgspec.json.decode(content), dict)
    return False


#: Files that are outdated when a run is resumed, and whether a content is that of such a file.
OUTDATED = {"summary.json": _is_record, "status.json": _is_record, FAILED: lambda content: not content}


class Recorder:
    """Writes the files of one run.

    A new run makes its own directory: NAME, or NAME-2, NAME-3, ... if that exists, so that no run overwrites another.
    With `resume`, a run continues in its directory, and removes the old summary, and the records of what it repeats. No
    other run can use the directory until the files are closed. The configuration is written with the directory's name
    as ``run.name``. Raise UsageError if the directory can't be made or written, or another run uses it.

    `token` identifies this run, for `mpidl.storage.files.scratch`. Given that of a run whose process has died, another
    process continues with the run's files, in the directory NAME. `counts` has the number of the run's events of each
    kind, those before a resume included; `last` is the last record before a resume.

    Loggers get what the files get: those that the configuration names, and those `given`. They start with the number
    of `samples` after which the run begins or resumes.
    """

    def __init__(
        self,
        config: Config,
        resume: bool = False,
        token: str | None = None,
        given: Sequence[Logger] = (),
        samples: int = 0,
    ) -> None:
        self._config, self._samples = config, samples
        self.loggers = Loggers(config.run.loggers, given)
        parent, name = config.run.directory.parent, config.run.name
        self.last: Mapping[str, Any] = {}
        self._made: list[Path] = []
        # Events of a process that has died that its state doesn't have: they are not written again.
        self._written: list[dict[str, Any]] = []
        self.token = secrets.token_hex(8) if token is None else token
        self.directory = parent / name
        resume |= token is not None
        try:
            above = [each for each in (parent, *parent.parents) if not each.exists()]
            if not resume:
                self.directory = _new_directory(parent, name)
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.directory)
            if not resume:
                self._made = [self.directory, *above]
            self._checkpoints = self.directory / "checkpoints"
            if token is None:
                self._begin(config)
            self._metrics = appending(self.directory / "metrics.jsonl")
            if resume and token is None:
                self._cut_off()
            self._events = appending(self.directory / "events.jsonl")
            self.counts = Counter(event["event"] for event in self._events_from(0).read())
            self._unlogged = self._events_from(_size(self._events))
        except OSError as error:
            file = Path(error.filename or "")
            reason = f"{file.name}: {error.strerror}" if file.parent == self.directory else error.strerror
            raise UsageError(f"run.dir: can't write in {shown(str(self.directory), 200)}: {reason}") from None
        if token is None:
            self._start_loggers(strict=not resume)

    def _start_loggers(self, strict: bool) -> None:
        values = tomllib.loads(_resolved(self._config, self.directory).to_toml())
        try:
            self.loggers.start(self.directory, values, self._samples, strict)
        except UsageError:
            self.discard()
            raise

    def _begin(self, config: Config) -> None:
        for outdated, is_own in OUTDATED.items():
            remove_file(self.directory / outdated, is_own)
        self._checkpoints.mkdir(exist_ok=True)
        write_whole(self.directory / "config.toml", _resolved(config, self.directory).to_toml().encode())
        if (running := script.current()) is not None:
            write_whole(self.directory / script.NOTE, running.note())

    def _cut_off(self) -> None:
        """Remove the records from the samples on at which the run resumes: they will be written again."""
        with open_regular(self.directory / "metrics.jsonl") as lines:
            content = lines.read()
        start = end = len(content)
        for line in reversed(content.splitlines(keepends=True)):
            start -= len(line)
            if b'"samples"' in line and (found := decoded(line, RECORD)[0]):
                if found[0]["samples"] <= self._samples:
                    self.last = self.last or found[0]
                    if found[0]["samples"] < self._samples:
                        break
                end = start
        self._metrics.truncate(end)

    def state(self) -> dict[str, int]:
        """Return the state for resuming in another process: sizes of the files, and samples of the last record."""
        return {"metrics": _size(self._metrics), "events": _size(self._events), "samples": self._samples}

    def load(self, state: Mapping[str, int]) -> None:
        """Resume with the files as they were at the `state` of a process that has died.

        Later records are cut off. Later events stay, as other ranks write events, too: each is not written again.
        """
        self._metrics.truncate(min(state["metrics"], _size(self._metrics)))
        self._written += self._events_from(state["events"]).read()
        self._samples, self._unlogged = state["samples"], self._events_from(state["events"])
        self._start_loggers(strict=False)

    def read_summary(self) -> Summary:
        """Return the summary that has been written; raise MpidlError if it can't be read."""
        path = self.directory / "summary.json"
        try:
            found: Summary = msgspec.json.decode(read_text(path, of_run=True))
        except (OSError, *MALFORMED) as error:
            raise cannot_read(path, error) from error
        return found

    def check(self) -> None:
        """Raise MpidlError if the directory has been removed, or replaced by another, since the run began."""
        self._lock.check()

    def metric(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Append a report to ``metrics.jsonl``, where numbers that aren't finite are null; return what a reader finds.

        Raise MpidlError if the line can't be written, for example because the disk is full.
        """
        written: dict[str, Any] = msgspec.json.decode(self._append(self._metrics, record))
        self._samples = written.get("samples", 0)
        self._log_events()
        self.loggers.record(written)
        return written

    def event(self, kind: str, rank: int, role: str, **details: Any) -> None:
        """Append an event to ``events.jsonl``, with the time in seconds since the epoch.

        It has a kind, such as "checkpoint", "failure" or "recovery", the rank and role that it concerns, and further
        details. Raise MpidlError if the line can't be written.
        """
        event = _event(kind, rank, role, details)
        for written in self._written:
            if msgspec.json.decode(encode(event)) | {"time": written.get("time")} == written:
                self._written.remove(written)
                return
        self._append(self._events, event)
        self.counts[kind] += 1

    def status(self, status: Mapping[str, Any]) -> None:
        """Write ``status.json`` with the time, completely or, where there is no room, not at all."""
        self.check()
        content, path = encode({"time": time.time(), **status}), self.directory / "status.json"
        with suppress(OSError), replacing(path) as partial, open(partial, "wb", opener=regular) as file:
            file.write(content)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json`` completely or not at all; raise MpidlError if the file can't be written."""
        self.check()
        path = self.directory / "summary.json"
        try:
            write_whole(path, msgspec.json.format(encode(summary), indent=2) + b"\n")
        except OSError as error:
            raise MpidlError(f"{path}: {error.strerror}") from None
        self._log_events()
        self.loggers.finish(summary)

    def _log_events(self) -> None:
        """Give the loggers the events that any rank has written since the last call."""
        for event in self._unlogged.read() if self.loggers else ():
            self.loggers.event(event)

    def _events_from(self, place: int) -> Lines:
        """Return the events in ``events.jsonl`` behind its first bytes."""
        return Lines(self.directory / "events.jsonl", EVENT, place)

    def _append(self, file: FileIO, record: Mapping[str, Any]) -> bytes:
        self.check()
        line = encode(record) + b"\n"
        try:
            append_line(file, line)
        except OSError as error:
            raise MpidlError(f"{file.name}: {error.strerror}") from None
        return line

    def discard(self) -> None:
        """Close the files, and remove the directories made for a run that doesn't start."""
        self.close()
        if not self._made:
            return
        with suppress(OSError):
            for step in self._checkpoints.iterdir():
                remove(step)
            for name in FILES:
                (self.directory / name).unlink(missing_ok=True)
        for directory in (self._checkpoints, *self._made):
            with suppress(OSError):  # something else is in it, such as another run's directory
                directory.rmdir()

    def close(self) -> None:
        """Close the files; the loggers of a run without a summary finish."""
        self._log_events()
        self.loggers.finish(None)
        self._metrics.close()
        self._events.close()
        self._lock.close()


def record_event(directory: Path, kind: str, rank: int | None, role: str, **details: Any) -> None:
    """Append an event to a run's ``events.jsonl`` from any rank; do nothing if the file can't be written or is gone."""
    line = encode(_event(kind, rank, role, details)) + b"\n"
    with suppress(OSError), FileIO(directory / "events.jsonl", "a+", opener=existing) as file:
        append_line(file, line)


def first_failure(directory: Path, rank: int) -> bool:
    """Return whether this rank is the first of a run to call this.

    Return True if they can't leave a file there, or the run's files are gone: then one rank after another is the first,
    so that the job's end comes before their lines.
    """
    try:
        (directory / "events.jsonl").lstat()
        (directory / FAILED).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        time.sleep(min(APART * rank, AT_MOST))
    return True


def _size(file: FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _event(kind: str, rank: int | None, role: str, details: Mapping[str, Any]) -> dict[str, Any]:
    return {"time": time.time(), "event": kind, "rank": rank, "role": role, **details}


def _resolved(config: Config, directory: Path) -> Config:
    """Return a configuration with the name of a run's directory."""
    return replace(config, run=replace(config.run, name=directory.name))


def _new_directory(parent: Path, name: str) -> Path:
    """Make a directory with a name or, if it exists, the first free of NAME-2, NAME-3, ..."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        directory = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            directory.mkdir()
            break
    return directory


def encode(record: Mapping[str, Any]) -> bytes:
    """Return a record of numbers, text and NumPy arrays as a line of JSON; numbers that are not finite become null."""
    return msgspec.json.encode(record, enc_hook=lambda value: value.tolist())


def as_json_line(record: Mapping[str, Any]) -> str:
    """Return a record as `encode` does, as text for a terminal, in which control characters are escaped."""
    line = encode(record).decode()
    return line if line.isprintable() else "".join(each if each.isprintable() else dumps(each)[1:-1] for each in line)


def origin(hosts: Sequence[str], mpi: str | None, seed: int, virtual: bool = False) -> dict[str, Any]:
    """Return the items of a summary about the origin of its figures, given the host of each rank and the MPI library.

    The times and rates of a run on a `virtual` cluster are predictions.
    """
    return {
        "virtual": virtual,
        "version": VERSION,
        "command": os.environ.get(marks.COMMAND) or command(),
        "hosts": dict(Counter(hosts)),
        "mpi": mpi,
        "job_id": environment.job(),
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def command() -> str:
    """Return the command line of this process, as a person would type it."""
    program = Path(sys.argv[0])
    return shlex.join(["mpidl" if program.name in ("mpidl", "__main__.py") else str(program), *sys.argv[1:]])
