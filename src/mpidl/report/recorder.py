"""A run's directory and its files: ``config.toml``, ``metrics.jsonl``, ``events.jsonl`` and ``summary.json``."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import FileIO
from itertools import chain, count
from json import dumps
from pathlib import Path
from typing import Any

import msgspec

from mpidl.config import Config
from mpidl.errors import MpidlError, UsageError, shown
from mpidl.launch import environment, marks, script
from mpidl.paths import open_regular
from mpidl.storage.lock import Lock
from mpidl.version import VERSION

#: Bytes of the longest line of a file of lines.
LONGEST = 1 << 20

#: Name of the file that the first rank to fail leaves.
FAILED = ".failed"


class Recorder:
    """Writes the files of one run.

    A new run makes its own directory: NAME, or NAME-2, NAME-3, ... if that exists, so that no run overwrites another.
    With `resume`, a run continues in its directory, and removes the old summary. No other run can use the directory
    until the files are closed. The configuration is written with the directory's name as ``run.name``. Raise UsageError
    if the directory can't be made or written, or another run uses it.
    """

    def __init__(self, config: Config, resume: bool = False) -> None:
        parent, name = config.run.directory.parent, config.run.name
        self._made: list[Path] = []
        try:
            above = [each for each in (parent, *parent.parents) if not each.exists()]
            self.directory = parent / name if resume else _new_directory(parent, name)
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.directory)
            if not resume:
                self._made = [self.directory, *above]
            for outdated in ("summary.json", FAILED):
                (self.directory / outdated).unlink(missing_ok=True)
            resolved = replace(config, run=replace(config.run, name=self.directory.name))
            _write_file(self.directory / "config.toml", resolved.to_toml().encode())
            if (running := script.current()) is not None:
                _write_file(self.directory / script.NOTE, running.note())
            self._metrics = _open_append(self.directory / "metrics.jsonl")
            self._events = _open_append(self.directory / "events.jsonl")
        except OSError as error:
            raise UsageError(f"run.dir: can't write in {shown(str(parent / name), 200)}: {error.strerror}") from None

    def metric(self, record: Mapping[str, Any]) -> None:
        """Append a report to ``metrics.jsonl``; numbers that are not finite become null.

        Raise MpidlError if the line can't be written, for example because the disk is full.
        """
        self._append(self._metrics, record)

    def event(self, kind: str, rank: int, role: str, **details: Any) -> None:
        """Append an event to ``events.jsonl``, with the time in seconds since the epoch.

        It has a kind, such as "checkpoint", "failure" or "recovery", the rank and role that it concerns, and further
        details. Raise MpidlError if the line can't be written.
        """
        self._append(self._events, _event(kind, rank, role, details))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json`` completely or not at all; raise MpidlError if the file can't be written."""
        path = self.directory / "summary.json"
        try:
            _write_file(path, msgspec.json.format(encode(summary), indent=2) + b"\n")
        except OSError as error:
            raise MpidlError(f"{path}: {error.strerror}") from None

    def _append(self, file: FileIO, record: Mapping[str, Any]) -> None:
        line = encode(record) + b"\n"
        try:
            while line:
                line = line[file.write(line) :]
        except OSError as error:
            raise MpidlError(f"{file.name}: {error.strerror}") from None

    def discard(self) -> None:
        """Close the files, and remove the directories made for a run that doesn't start."""
        self.close()
        for directory in self._made[:1]:
            shutil.rmtree(directory, ignore_errors=True)
        for directory in self._made[1:]:
            with suppress(OSError):  # another run's directory is in it
                directory.rmdir()

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        self._events.close()
        self._lock.close()


def record_event(directory: Path, kind: str, rank: int, role: str, **details: Any) -> None:
    """Append an event to a run's ``events.jsonl`` from any rank; do nothing if the file can't be written."""
    line = encode(_event(kind, rank, role, details)) + b"\n"
    with suppress(OSError), FileIO(directory / "events.jsonl", "a") as file:
        file.write(line)


def first_failure(directory: Path) -> bool:
    """Return whether this rank is the first of a run to call this; True if the file can't be written."""
    try:
        (directory / FAILED).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _event(kind: str, rank: int, role: str, details: Mapping[str, Any]) -> dict[str, Any]:
    return {"time": time.time(), "event": kind, "rank": rank, "role": role, **details}


def _new_directory(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(directory for directory in map(parent.joinpath, names) if _made(directory))


def _made(directory: Path) -> bool:
    """Make a directory and return True, or return False if it exists."""
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    return True


def _write_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, and rename it once it is on disk."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _open_append(path: Path) -> FileIO:
    """Open a file of lines for appending; remove an incomplete last line, left by a writer that died.

    Raise OSError if the file can't be written, or what comes after its last line is too long for one.
    """
    file = FileIO(path, "a")
    with open_regular(path) as lines:
        start = max(0, lines.seek(0, os.SEEK_END) - LONGEST)
        lines.seek(start)
        end = lines.read(LONGEST).rfind(b"\n") + 1
    if start and not end:
        raise OSError(errno.EFBIG, f"{path.name} has no line in its last {LONGEST >> 20} MiB")
    file.truncate(start + end)
    return file


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
