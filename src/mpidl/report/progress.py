"""A run's progress on stderr: a bar on a terminal, one line per report in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Any

from mpidl.launch.output import STDERR, readerless

__all__ = ["Progress", "on_terminal"]

#: Processes that may stand between a rank and its terminal; the kernel shortens names to 15 characters.
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pr")

#: Time constant of the averaged rate, in seconds.
AVERAGING_TIME = 10.0

#: Fewest characters of the bar.
SHORTEST_BAR = 12


def on_terminal() -> bool:
    """Return whether stderr of this process ends on a terminal, directly or through a launcher."""
    return _columns() is not None


def _columns() -> int | None:
    """Return the width of the terminal that stderr ends on, or None if it ends elsewhere.

    ``mpidl train -n`` sets ``MPIDL_TERMINAL`` to the width. Otherwise the terminal is that of this process or of the
    nearest launcher above it that has one: launchers read the stderr of their ranks through pipes.
    """
    if "MPIDL_TERMINAL" in os.environ:
        return int(os.environ["MPIDL_TERMINAL"])
    process = os.getpid()
    while True:
        columns = _columns_of(process)
        if columns is not None:
            return columns
        process, name = _parent(process)
        if name not in LAUNCHERS:
            return None


def _columns_of(process: int) -> int | None:
    try:
        descriptor = os.open(f"/proc/{process}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parent(process: int) -> tuple[int, str]:
    """Return the parent of `process` and its name, or (0, "") if it can't be read."""
    try:
        parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return parent, Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return 0, ""


class Progress:
    """Shows a run's reports on stderr as they come. If its reader has gone away, that asks the run to save and stop.

    Parameters
    ----------
    total_samples : int
        Number of samples that the whole run uses.
    terminal : bool
        Whether to draw a bar, with a line above it for each evaluation; otherwise each report is a line.
    model : str
        Description of the model, shown first.
    """

    @readerless(STDERR)
    def __init__(self, total_samples: int, terminal: bool, model: str) -> None:
        self._total = total_samples
        self._rate: float | None = None
        self._time = 0.0
        self._evaluation: tuple[Any, Any] = (None, None)
        self._bar: Any = None
        print(model if terminal else f"{_clock()}  {model}", file=sys.stderr, flush=True)
        if terminal:
            self._bar = _bar(total_samples)

    @readerless(STDERR)
    def write(self, line: str) -> None:
        """Show a line of text."""
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.write(line, file=sys.stderr)

    @readerless(STDERR)
    def update(self, report: Mapping[str, Any]) -> None:
        """Show a report.

        Parameters
        ----------
        report : mapping
            "time" (training time so far, in seconds), "samples" and "epoch" so far. "train_loss", "test_loss",
            "test_accuracy", "samples_per_second", "server_load" (0 to 1) and "staleness" ("mean", "p50", "p99",
            "max") may be None or absent.
        """
        self._average(report)
        if self._bar is None:
            print(f"{_clock()}  {'  '.join(self._line(report))}", file=sys.stderr, flush=True)
            return
        evaluation = (report.get("test_loss"), report.get("test_accuracy"))
        if evaluation not in ((None, None), self._evaluation):
            self._evaluation = evaluation
            self._bar.write("  ".join(_evaluation_line(report)), file=sys.stderr)
        width = (_columns() or 80) - 1
        self._bar.ncols = width
        self._bar.n = min(report["samples"], self._total)
        self._bar.set_description_str(self._figures(report, width), refresh=True)

    @readerless(STDERR)
    def close(self) -> None:
        """Stop redrawing the bar, and leave it as it is."""
        if self._bar is not None:
            self._bar.close()

    def _average(self, report: Mapping[str, Any]) -> None:
        """Update the exponentially weighted mean of the rate, weighting the report by the time it covers."""
        rate, seconds = report.get("samples_per_second"), report["time"] - self._time
        if rate is None:
            return
        self._time = report["time"]
        kept = exp(-seconds / AVERAGING_TIME) if self._rate is not None else 0.0
        self._rate = kept * (self._rate or 0.0) + (1 - kept) * rate

    def _left(self, report: Mapping[str, Any]) -> str | None:
        if not self._rate:
            return None
        return f"{_duration(max(0, self._total - report['samples']) / self._rate)} left"

    def _figures(self, report: Mapping[str, Any], width: int) -> str:
        """Return the figures that fit beside the shortest bar; the least important are left out first."""
        rate = f"{self._rate:.0f}/s" if self._rate is not None else None
        staleness = report.get("staleness")
        figures = [
            f"epoch {report['epoch']:.1f}",
            rate,
            _figure("loss {:.3f}", report.get("train_loss")),
            _figure("acc {:.3f}", report.get("test_accuracy")),
            _figure("stale {:.1f}", staleness and staleness["mean"]),
            _figure("load {:.0%}", report.get("server_load")),
            self._left(report),
        ]
        room = width - len("100%||  ") - SHORTEST_BAR
        for left_out in ((), (0,), (0, 5), (0, 4, 5), (0, 3, 4, 5), (0, 2, 3, 4, 5), range(6), range(7)):
            texts = [text for number, text in enumerate(figures) if text and number not in left_out]
            for gap in ("  ", " "):
                if len(gap.join(texts)) <= room:
                    return gap.join(texts)
        return ""

    def _line(self, report: Mapping[str, Any]) -> list[str]:
        staleness = report.get("staleness")
        texts = [
            f"epoch {report['epoch']:.2f}",
            f"{min(1.0, report['samples'] / self._total):4.0%}",
            _figure("{:.0f} samples/s", report.get("samples_per_second")),
            _figure("train loss {:.4f}", report.get("train_loss")),
            _figure("test loss {:.4f}", report.get("test_loss")),
            _figure("test accuracy {:.4f}", report.get("test_accuracy")),
            "staleness {mean:.2f} (p99 {p99}, max {max})".format(**staleness) if staleness else None,
            _figure("server load {:.0%}", report.get("server_load")),
            self._left(report),
        ]
        return [text for text in texts if text]


def _bar(total_samples: int) -> Any:
    from tqdm import tqdm

    # The only bar among MPI ranks needs neither tqdm's monitor thread nor its lock between processes.
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())
    return tqdm(
        total=total_samples,
        desc="starting",
        bar_format="{percentage:3.0f}%|{bar}| {desc}",
        ncols=(_columns() or 80) - 1,
        nrows=24,  # on a terminal that reports no rows tqdm would hide the bar
        file=sys.stderr,
    )


def _evaluation_line(report: Mapping[str, Any]) -> list[str]:
    texts = [
        f"epoch {report['epoch']:5.1f}",
        _figure("test accuracy {:.4f}", report.get("test_accuracy")),
        _figure("test loss {:.4f}", report.get("test_loss")),
        _figure("train loss {:.4f}", report.get("train_loss")),
        f"after {_duration(report['time'])}",
    ]
    return [text for text in texts if text]


def _figure(form: str, value: float | None) -> str | None:
    return None if value is None else form.format(value)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _duration(seconds: float) -> str:
    """Return seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
