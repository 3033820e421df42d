"""Event files for TensorBoard, written by tensorboardX."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import FileIO
from json import dumps
from pathlib import Path
from typing import Any

from mpidl.errors import UsageError
from mpidl.extras import require
from mpidl.loggers.logger import Logger
from mpidl.paths import open_directory, regular

#: Items of a record that are axes, and no figures.
AXES = ("time", "samples", "unix_time")


class TensorBoard(Logger):
    """Writes event files for TensorBoard; TensorFlow isn't needed.

    The step of all values is the number of samples. Figures of records are scalars, those within others with a slash,
    such as ``staleness/mean``; ``summary/`` has those of the summary. The staleness of the pushes since the last record
    is a histogram, the configuration is the run's hparams, and events are texts.

    Parameters
    ----------
    directory : str or Path, optional
        The directory of the files; ``tensorboard`` in the run's directory by default.

    Raises
    ------
    UsageError
        The package tensorboardX isn't installed.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self._directory = directory
        modules = ("summary", "record_writer", "proto.event_pb2")
        self._summary, self._format, self._protocol = (
            require(f"tensorboardX.{module}", "tensorboard") for module in modules
        )

    def start(self, directory: Path, config: Mapping[str, Mapping[str, Any]], samples: int) -> None:
        own = directory / "tensorboard" if self._directory is None else Path(self._directory).expanduser()
        # Readers take files in the order of their names, and no two may have the same.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{time.time_ns()}"
        if self._directory is None:
            try:
                with open_directory(own, make=True) as opened:
                    self._file = FileIO(name, "x", opener=partial(regular, directory=opened))
            except NotADirectoryError as error:
                raise UsageError(f"{own}: {error.strerror}") from None
        else:
            own.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(own / name, "x")
        self._samples = samples
        self._tags: dict[str, str] = {}
        self._staleness: Sequence[int] = ()
        self._events: list[str] = []
        begin = self._protocol.SessionLog(status=self._protocol.SessionLog.START)
        self._write(time.time(), file_version="brain.Event:2")
        self._write(time.time(), session_log=begin, step=samples + 1)
        self._parameters = dict(_parameters(config))
        _, session, _ = self._summary.hparams(self._parameters, {})
        self._write(time.time(), summary=session)

    def record(self, record: Mapping[str, Any]) -> None:
        self._samples, now = int(record["samples"]), record.get("unix_time", record.get("time", 0.0))
        self._scalars(now, {name: value for name, value in record.items() if name not in AXES})
        counts = record.get("staleness_histogram") or ()
        before = [*self._staleness, *[0] * len(counts)]
        new = [count - earlier for count, earlier in zip(counts, before, strict=False)]
        self._staleness = counts
        if sum(new) > 0 and min(new) >= 0:
            squares = sum(count * staleness**2 for staleness, count in enumerate(new))
            total = sum(count * staleness for staleness, count in enumerate(new))
            ends = [staleness + 0.5 for staleness in range(len(new))]
            found = self._summary.histogram_raw("staleness", -0.5, ends[-1], sum(new), total, squares, ends, new)
            self._write(now, summary=found)
        self._tell_events(now)

    def event(self, event: Mapping[str, Any]) -> None:
        others = {name: value for name, value in event.items() if name not in ("time", "event", "rank", "role")}
        details = "".join(f", {name} {dumps(value)}" for name, value in others.items())
        self._events.append(f"- {event['event']}: rank {event.get('rank')} ({event.get('role')}){details}")

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        now = time.time()
        self._tell_events(now)
        if summary is not None:
            flat = {key: value for key, value in summary.items() if not isinstance(value, Mapping | list)}
            self._scalars(now, {"summary": flat})
            if not summary.get("interrupted"):
                _, _, end = self._summary.hparams(self._parameters, {})
                self._write(now, summary=end)
        self._file.close()

    def _scalars(self, now: float, values: Mapping[str, Any]) -> None:
        found = self._protocol.Event().summary
        for name, value in _numbers(values):
            if name not in self._tags:
                self._tags[name] = self._summary.scalar(name, 0.0).value[0].tag
            found.value.add(tag=self._tags[name], simple_value=value)
        self._write(now, summary=found)

    def _tell_events(self, now: float) -> None:
        if self._events:
            self._write(now, summary=self._summary.text("events", "\n".join(self._events)))
            self._events.clear()

    def _write(self, now: float, **content: Any) -> None:
        """Write a whole event or, without room on the disk, nothing: readers stop at an incomplete event."""
        event = self._protocol.Event(**{"wall_time": now, "step": self._samples, **content}).SerializeToString()
        size, checksum = struct.pack("<Q", len(event)), self._format.masked_crc32c
        framed = size + struct.pack("<I", checksum(size)) + event + struct.pack("<I", checksum(event))
        end = self._file.tell()
        try:
            while framed:
                framed = framed[self._file.write(framed) :]
        except OSError:
            self._file.truncate(end)
            self._file.seek(end)
            raise


def _numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object and of those in it, named with a slash."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield above + name, value


def _parameters(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Yield the keys of sections, with dots, and their values; lists are JSON."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _parameters(value, f"{above}{name}.")
        else:
            known = isinstance(value, float | str) or (isinstance(value, int) and abs(value) < 1 << 63)
            yield above + name, value if known else dumps(value, default=str)
