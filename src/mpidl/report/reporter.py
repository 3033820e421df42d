"""Turns a run's totals into what people see: records, the progress bar and the summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.engines.totals import Totals
from mpidl.report.progress import Progress
from mpidl.report.recorder import Recorder
from mpidl.report.text import size
from mpidl.shards.staleness import staleness_statistics

if TYPE_CHECKING:
    from mpidl.job.job import Job

#: Seconds between two redraws of the progress bar.
REDRAW_EVERY = 0.5
#: Rates are taken over at least this long (seconds): ranks post their figures ten times a second.
SHORTEST_SPAN = 0.3

#: What a record has of a coordinator's last iteration.
ITERATION = (
    "number", "objective", "gradient_norm", "step", "evaluations", "portions", "backups", "won", "waiting", "operating",
    "messages",
)  # fmt: skip


class Reporter:
    """Keeps the run's files and the terminal up to date.

    Parameters
    ----------
    job : Job
    recorder : Recorder
    terminal : bool
        Draw a progress bar; otherwise write a line per report.

    Attributes
    ----------
    due : float
        When the next record is to be written, in the totals' time.
    """

    def __init__(self, job: Job, recorder: Recorder, terminal: bool) -> None:
        self._job, self.recorder = job, recorder
        self._done_before = job.position.samples
        self._samples_per_epoch = job.dataset.train.samples
        total = job.schedule.steps * job.config.data.batch
        model = size(job.layout.size, job.layout.size * job.dtype.itemsize)
        self._progress = Progress(min(total, job.schedule.epochs * self._samples_per_epoch), terminal, model)
        self._every = REDRAW_EVERY if terminal else job.config.run.report
        self._shown_at = self._recorded_at = self.due = 0.0
        self._began = time.time()
        self._seconds_to_target: float | None = None
        self._rated = Totals(0.0)
        self._losses: dict[str, Any] = {"train_loss": None, "test_loss": None, "test_accuracy": None}
        self._iteration: dict[str, Any] = {}
        # What a coordinator has accrued: workers compute some samples twice.
        self._passed: int | None = None
        self._rates: dict[str, Any] = {"samples_per_second": None, "server_load": None}

    def epoch(self, totals: Totals) -> float:
        """Return how many epochs of data have been used, those before a resume included."""
        samples = totals.samples if self._passed is None else self._passed
        return (self._done_before + samples) / self._samples_per_epoch

    def placed(self, workers: Sequence[str], servers: Sequence[str] = ()) -> None:
        """Say where the workers compute, and the servers: those of them that had a choice."""
        for role, places in (("workers", workers), ("servers", servers)):
            for place, ranks in Counter(places).items():
                self.recorder.event("device", rank=0, role="coordinator", place=place, **{role: ranks})
        said = [f"computing on {_counted(workers)}"] if workers else []
        said += [f"shards on {_counted(servers)}"] if servers else []
        if said:
            self._progress.say("; ".join(said))

    def look(self, totals: Totals) -> None:
        """Show and record the totals if it is time to."""
        if not totals.first_fetch:
            return
        if time.time() - max(self._shown_at, self._began) >= self._every:
            self._show(self._report(totals))
        self.due = max(self._recorded_at, totals.first_fetch) + self._job.config.run.report
        if totals.now >= self.due:
            self._record(self._report(totals), totals.now)

    def evaluated(self, totals: Totals, epoch: float, loss: float, accuracy: float, final: bool = False) -> bool:
        """Record an evaluation on the test data; return whether it reached the run's target accuracy.

        `accuracy` is NaN where correctness means nothing. Of evaluations that follow each other faster than people
        read, only the `final` one is sure to be shown.
        """
        self._losses |= {"test_loss": loss, "test_accuracy": None if isnan(accuracy) else accuracy}
        report = self._report(totals) | {"epoch": epoch}
        self._record(report, totals.now)
        if final or time.time() - self._shown_at >= SHORTEST_SPAN:
            self._show(report)
        target = self._job.config.run.target_accuracy
        reached = target is not None and accuracy >= target
        if reached and self._seconds_to_target is None:
            self._seconds_to_target = totals.seconds
        return reached

    def iterated(self, totals: Totals, iteration: Iteration) -> None:
        """Record an iteration of a coordinator."""
        self._passed = iteration.samples
        self._iteration = {"iteration": {name: getattr(iteration, name) for name in ITERATION}}
        self._record(self._report(totals), totals.now)
        if iteration.backups:
            details = {"iteration": iteration.number, "backups": iteration.backups, "won": iteration.won}
            self.recorder.event("backups", rank=0, role="coordinator", **details)

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
            "time": totals.seconds,
            "samples": self._done_before + totals.samples,
            "epoch": self.epoch(totals),
            **self._losses,
            **self._rates,
            **self._counts(totals),
            **self._iteration,
            "waiting": totals.waiting_seconds / totals.seconds if totals.seconds > 0 else None,
        }

    def _rate(self, totals: Totals) -> None:
        """Take loss, speed and load since the last time they were taken, if that is long enough ago."""
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
            "pushes": totals.pushes,
            "fetches": totals.fetches,
            "bytes_pushed": totals.bytes_pushed,
            "bytes_fetched": totals.bytes_fetched,
            "dropped": totals.dropped,
            "timing": totals.timing(),
        }

    def close(self, totals: Totals, **more: Any) -> dict[str, Any]:
        """Write the summary, close the files, and return it.

        Parameters
        ----------
        totals : Totals
            Of the finished run.
        more
            What the engine adds: ranks, servers, replicas, partitions, interrupted.
        """
        self._progress.close()
        if self._losses["train_loss"] is None and totals.samples:
            self._losses["train_loss"] = totals.loss / totals.samples
        seconds = totals.trained_seconds
        summary = {
            "algorithm": self._job.config.algorithm.name,
            **more,
            "epochs": self.epoch(totals),
            "samples": totals.samples,
            "seconds": seconds,
            "samples_per_second": totals.samples / seconds if seconds > 0 else 0.0,
            "seconds_to_target": self._seconds_to_target,
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
    """Return the places, for people; where they differ, with how many there are of each."""
    counts = Counter(places)
    return ", ".join(counts if len(counts) == 1 else [f"{place}: {ranks}" for place, ranks in counts.items()])
