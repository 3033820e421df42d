"""Turning a run's totals into records, figures on the terminal and the summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import Any

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.engines.totals import Totals
from mpidl.job.job import Job
from mpidl.report.progress import Progress
from mpidl.report.recorder import Recorder
from mpidl.report.text import size
from mpidl.shards.staleness import staleness_statistics

#: Seconds between two redraws of the progress bar.
REDRAW_EVERY = 0.5
#: Shortest time in seconds over which rates are computed; ranks post their figures ten times a second.
SHORTEST_SPAN = 0.3

#: Attributes of the last `Iteration` that a record holds.
ITERATION = (
    "number", "objective", "gradient_norm", "step", "evaluations", "portions", "backups", "won", "waiting", "operating",
    "messages",
)  # fmt: skip


class Reporter:
    """Writes a run's records and shows its progress.

    Parameters
    ----------
    job : Job
    recorder : Recorder
    terminal : bool
        Whether to draw a progress bar; otherwise each report is a line.

    Attributes
    ----------
    recorder : Recorder
    due : float
        When the next record is due: seconds since the epoch, on the clock of the totals.
    """

    def __init__(self, job: Job, recorder: Recorder, terminal: bool) -> None:
        self._job, self.recorder = job, recorder
        self._done_before, self._seconds_before = job.position.samples, job.position.seconds
        self._samples_per_epoch = job.dataset.train.samples
        total = job.schedule.steps * job.config.data.batch
        model = size(job.layout.size, job.layout.size * job.dtype.itemsize)
        self._progress = Progress(min(total, job.schedule.epochs * self._samples_per_epoch), terminal, model)
        self._every = REDRAW_EVERY if terminal else job.config.run.report
        self._shown_at = self._recorded_at = self.due = 0.0
        self._began = time.time()
        self._rated = Totals(0.0)
        self._losses: dict[str, Any] = {"train_loss": None, "test_loss": None, "test_accuracy": None}
        self._iteration: dict[str, Any] = {}
        # Samples that a coordinator has accrued; workers compute some of them twice.
        self._accrued: int | None = None
        self._rates: dict[str, Any] = {"samples_per_second": None, "server_load": None}

    def epoch(self, totals: Totals) -> float:
        """Return how many epochs of data have been used, including those before a resume."""
        samples = totals.samples if self._accrued is None else self._accrued
        return (self._done_before + samples) / self._samples_per_epoch

    def placed(self, workers: Sequence[str], servers: Sequence[str] = ()) -> None:
        """Record and show the devices of the workers and servers that had a choice of them."""
        for role, places in (("workers", workers), ("servers", servers)):
            for place, ranks in Counter(places).items():
                self.recorder.event("device", rank=0, role="coordinator", place=place, **{role: ranks})
        parts = [f"computing on {_counted(workers)}"] if workers else []
        parts += [f"shards on {_counted(servers)}"] if servers else []
        if parts:
            self._progress.write("; ".join(parts))

    def look(self, totals: Totals) -> None:
        """Show and record the totals if either is due."""
        if not totals.first_fetch:
            return
        if time.time() - max(self._shown_at, self._began) >= self._every:
            self._show(self._report(totals))
        self.due = max(self._recorded_at, totals.first_fetch) + self._job.config.run.report
        if totals.now >= self.due:
            self._record(self._report(totals), totals.now)

    def evaluated(self, totals: Totals, epoch: float, loss: float, accuracy: float, final: bool = False) -> None:
        """Record an evaluation on the test data.

        Parameters
        ----------
        totals : Totals
            The totals at the beginning of the evaluation.
        epoch : float
            Number of epochs trained before it.
        loss, accuracy : float
            Means over the test data; `accuracy` is NaN where correctness has no meaning.
        final : bool
            Show this evaluation in any case. Others are not shown if the last report is less than `SHORTEST_SPAN` old.
        """
        self._losses |= {"test_loss": loss, "test_accuracy": None if isnan(accuracy) else accuracy}
        report = self._report(totals) | {"epoch": epoch}
        self._record(report, totals.now)
        if final or time.time() - self._shown_at >= SHORTEST_SPAN:
            self._show(report)

    def iterated(self, totals: Totals, iteration: Iteration) -> None:
        """Record an iteration of a coordinator."""
        self._accrued = iteration.samples
        self._iteration = {"iteration": {name: getattr(iteration, name) for name in ITERATION}}
        self._record(self._report(totals), totals.now)

    def _show(self, report: dict[str, Any]) -> None:
        self._progress.update(report)
        self._shown_at = time.time()

    def _record(self, report: dict[str, Any], now: float) -> None:
        self.recorder.metric(report)
        self._recorded_at = now
        self.due = now + self._job.config.run.report

    def _report(self, totals: Totals) -> dict[str, Any]:
        self._rate(totals)
        return {
            "time": self._seconds_before + totals.seconds,
            "samples": self._done_before + totals.samples,
            "epoch": self.epoch(totals),
            **self._losses,
            **self._rates,
            **self._counts(totals),
            **self._iteration,
            "waiting": totals.waiting_seconds / totals.seconds if totals.seconds > 0 else None,
        }

    def _rate(self, totals: Totals) -> None:
        """Compute training loss, speed and load since they were last computed, if that is long enough ago."""
        before = self._rated
        samples, seconds = totals.samples - before.samples, totals.seconds - before.seconds
        if seconds < SHORTEST_SPAN:
            return
        if samples > 0:
            self._losses["train_loss"] = (totals.loss - before.loss) / samples
        busy = sum(totals.busy_seconds) - sum(before.busy_seconds)
        load = min(1.0, busy / len(totals.busy_seconds) / seconds)
        self._rates = {"samples_per_second": samples / seconds, "server_load": load}
        self._rated = totals

    @staticmethod
    def _counts(totals: Totals) -> dict[str, Any]:
        return {
            "staleness": staleness_statistics(totals.staleness, totals.staleness_sum, totals.staleness_max),
            "staleness_histogram": totals.staleness[: min(totals.staleness_max + 1, len(totals.staleness))].tolist(),
            "tearing": totals.tearing(),
            "pushes": totals.pushes,
            "fetches": totals.fetches,
            "bytes_pushed": totals.bytes_pushed,
            "bytes_fetched": totals.bytes_fetched,
            "dropped": totals.dropped,
            "timing": totals.timing(),
        }

    def close(
        self,
        totals: Totals,
        *,
        ranks: int,
        servers: int,
        replicas: int,
        interrupted: bool,
        seconds_to_target: float | None,
    ) -> dict[str, Any]:
        """Write the summary, close the files and return the summary.

        Parameters
        ----------
        totals : Totals
            The totals of the finished run.
        ranks, servers, replicas : int
            Size of the run.
        interrupted : bool
            Whether a signal ended the run early.
        seconds_to_target : float or None
            Training time until the target accuracy was reached.
        """
        self._progress.close()
        if self._losses["train_loss"] is None and totals.samples:
            self._losses["train_loss"] = totals.loss / totals.samples
        seconds, samples = self._seconds_before + totals.trained_seconds, self._done_before + totals.samples
        summary = {
            "algorithm": self._job.config.algorithm.name,
            "ranks": ranks,
            "servers": servers,
            "replicas": replicas,
            "partitions": 1,
            "interrupted": interrupted,
            "epochs": self.epoch(totals),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds if seconds > 0 else 0.0,
            "seconds_to_target": seconds_to_target,
            **self._losses,
            **self._counts(totals),
            "failures": 0,
            "recoveries": 0,
            "run_dir": str(self._job.directory),
        }
        self.recorder.summary(summary)
        self.recorder.close()
        return summary


def _counted(places: Sequence[str]) -> str:
    """Return the distinct places as text, each with its number of ranks unless there is only one."""
    counts = Counter(places)
    return ", ".join(counts if len(counts) == 1 else [f"{place}: {ranks}" for place, ranks in counts.items()])
