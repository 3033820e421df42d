"""A run's progress on stderr: a bar on a terminal, lines of less than 80 columns in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from math import exp
from typing import Any

import msgspec

from mpidl.errors import escaped
from mpidl.launch import marks
from mpidl.launch.output import STDERR, send, show, terminate, tolerate_loss
from mpidl.report import lines
from mpidl.report.lines import Title
from mpidl.report.text import clock

#: Time constant of the averaged rate, in seconds.
AVERAGING_TIME = 30.0

#: Least length of the bar in characters.
SHORTEST_BAR = 12

#: Columns of a log, and of a terminal of unknown width.
COLUMNS = 80


class Progress:
    """Shows a run's reports on stderr as they arrive. If stderr is closed, the run is asked to save and stop.

    Lines that don't fit on the disk of a log are left out.

    Attributes
    ----------
    drawn : bool
        Whether a bar is redrawn.
    """

    drawn: bool

    def __init__(self, title: Title) -> None:
        self._title = title
        # The averaged rate, and the time up to which it is known.
        self._rate: float | None = None
        self._time = 0.0

    def write(self, line: str) -> None:
        """Show a line of text."""
        raise NotImplementedError

    def update(self, report: Mapping[str, Any], evaluated: bool = False, last: bool = False) -> None:
        """Show a report.

        Parameters
        ----------
        report : mapping
            "time" (training time so far, in seconds) and "epoch". "train_loss", the figures of the title's split, such
            as "test_loss", "samples_per_second", "server_load" (0 to 1), "staleness" ("mean", ...) and "iteration" may
            be None or absent.
        evaluated : bool
            Whether it is the report of an evaluation.
        last : bool
            Whether its rate is that of the whole run.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the output."""

    def _average(self, report: Mapping[str, Any], last: bool) -> None:
        """Update the exponentially weighted mean of the rate, weighting the report by the time it covers."""
        rate, seconds = report.get("samples_per_second"), report["time"] - self._time
        if rate is None:
            return
        self._time = report["time"]
        kept = exp(-seconds / AVERAGING_TIME) if self._rate is not None and not last else 0.0
        self._rate = kept * (self._rate or 0.0) + (1 - kept) * rate

    def _done(self, report: Mapping[str, Any]) -> float:
        """Return the completed fraction of the run."""
        return min(1.0, float(report["epoch"]) / self._title.epochs)

    def _left(self, report: Mapping[str, Any]) -> str | None:
        if not self._rate:
            return None
        samples = (self._title.epochs - report["epoch"]) * self._title.samples
        return f"{clock(samples / self._rate)} left"


def choose(title: Title, begun: bool = False) -> Progress:
    """Return the progress for this process's stderr, or its launcher's; `begun` if another has shown the title."""
    if os.environ.get(marks.TERMINAL):
        return ForwardedProgress(title, begun)
    return TerminalProgress(title) if os.isatty(2) else LogProgress(title, begun)


class ForwardedProgress(Progress):
    """Sends everything to ``mpidl train -n``, which draws: an MPI launcher holds back unfinished lines of its ranks."""

    drawn = True

    def __init__(self, title: Title, begun: bool = False) -> None:
        super().__init__(title)
        if not begun:
            self._tell("begin", title)

    def write(self, line: str) -> None:
        self._tell("write", line)

    def update(self, report: Mapping[str, Any], evaluated: bool = False, last: bool = False) -> None:
        self._tell("update", [self._title.shown(report), evaluated, last])

    def close(self) -> None:
        self._tell("close", None)

    @staticmethod
    def _tell(verb: str, what: Any) -> None:
        marks.tell(f"{marks.PROGRESS} {verb} {msgspec.json.encode(what).decode()}", terminate)


class TerminalProgress(Progress):
    """A bar, with a line above it for each evaluation."""

    drawn = True

    def __init__(self, title: Title) -> None:
        super().__init__(title)
        show(title.text, terminate)
        from tqdm import tqdm

        # The only bar among MPI ranks needs neither tqdm's monitor thread nor its lock between processes.
        tqdm.monitor_interval = 0
        tqdm.set_lock(threading.RLock())
        self._bar = tqdm(
            total=title.epochs,
            desc="starting",
            bar_format="{percentage:3.0f}%|{bar}| {desc}",
            ncols=_columns() - 1,
            nrows=24,  # on a terminal without a known number of rows, tqdm would hide the bar
            file=sys.stderr,
        )

    def write(self, line: str) -> None:
        self.pass_on(escaped(line))

    @tolerate_loss(STDERR)
    def pass_on(self, line: str) -> None:
        """Show a line of others as it is."""
        self._bar.write(line, file=sys.stderr)

    @tolerate_loss(STDERR)
    def update(self, report: Mapping[str, Any], evaluated: bool = False, last: bool = False) -> None:
        self._average(report, last)
        width = _columns() - 1
        if evaluated:
            for line in lines.evaluation(report, self._title, clock(report["time"]), width):
                self.write(line)
        self._bar.ncols = width
        self._bar.n = self._done(report) * self._title.epochs
        parts = lines.state(report, self._title, self._rate, self._left(report), in_log=False)
        described = lines.fit(parts, width - len("100%||  ") - SHORTEST_BAR)
        self._bar.set_description_str(escaped(described), refresh=True)

    @tolerate_loss(STDERR)
    def close(self) -> None:
        """End the output; the bar stays."""
        self._bar.close()


class LogProgress(Progress):
    """A line for each report, with the time of day."""

    drawn = False

    def __init__(self, title: Title, begun: bool = False) -> None:
        super().__init__(title)
        if not begun:
            self.write(f"{_clock()}  {title.text}")

    def write(self, line: str) -> None:
        show(line, terminate)

    def update(self, report: Mapping[str, Any], evaluated: bool = False, last: bool = False) -> None:
        self._average(report, last)
        begin = f"{_clock()}  " if self._title.iterates else f"{_clock()}  {self._done(report):4.0%}  "
        width = COLUMNS - 1 - len(begin)
        if evaluated:
            first, *others = lines.tested(report, self._title, width)
        else:
            rate = report.get("samples_per_second")
            parts = lines.state(report, self._title, rate, self._left(report), in_log=True)
            first, *others = [lines.fit(parts, width)]
        self.write(begin + first)
        for line in others:
            self.write(" " * len(begin) + line)


class ProgressScreen:
    """Shows a job's stderr on this process' own."""

    def __init__(self) -> None:
        self._progress: TerminalProgress | None = None
        self._line = b""

    def hear(self, text: str) -> None:
        """Act on a message of `ForwardedProgress`."""
        verb, _, what = text.partition(" ")
        if verb == "begin":
            self._end_line()
            self._progress = TerminalProgress(msgspec.json.decode(what, type=Title))
        elif self._progress is None:
            return
        elif verb == "close":
            self.close()
        elif verb == "write":
            self._progress.write(msgspec.json.decode(what))
        elif verb == "update":
            self._progress.update(*msgspec.json.decode(what))

    def write(self, text: bytes) -> None:
        """Show text, above the bar if there is one."""
        if self._progress is None:
            send(text, terminate)
            return
        *lines, self._line = (self._line + text).split(b"\n")
        for line in lines:
            self._progress.pass_on(line.decode(errors="replace").rstrip("\r"))

    def close(self) -> None:
        """Stop drawing the bar, and show an unfinished line."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._end_line()

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if line:
            send(line, terminate)


def show_on_terminal(line: str) -> None:
    """Show a line on this process's terminal or, if there is none, on stderr."""
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        show(line)
        return
    try:
        os.write(terminal, f"{escaped(line)}\r\n".encode())
    finally:
        os.close(terminal)


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or COLUMNS
    except OSError:
        return COLUMNS


def _clock() -> str:
    return time.strftime("%H:%M:%S")
