"""Turns a run's totals into what people see: records, the progress bar and the summary."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from mpidl.metrics import Recorder, staleness_statistics
from mpidl.report.progress import Progress
from mpidl.totals import Totals

if TYPE_CHECKING:
    from mpidl.job import Job

#: Seconds between two redraws of the progress bar.
REDRAW_EVERY = 0.5


class Reporter:
    """Keeps the run's files and the terminal up to date.

    Parameters
    ----------
    job : Job
    recorder : Recorder
    terminal : bool
        Draw a progress bar; otherwise write a line per report.
    """

    def __init__(self, job: Job, recorder: Recorder, terminal: bool) -> None:
        self._job, self.recorder = job, recorder
        self._done_before = job.position.samples
        self._samples_per_epoch = job.dataset.train.samples
        total = job.schedule.steps * job.config.data.batch
        self._progress = Progress(min(total, job.schedule.epochs * self._samples_per_epoch), terminal)
        self._every = REDRAW_EVERY if terminal else job.config.run.report
        self._shown = self._recorded = Totals(0.0)
        self._latest: dict[str, Any] = {"train_loss": None, "test_loss": None, "test_accuracy": None}

    def epoch(self, totals: Totals) -> float:
        """Return how many epochs of data have been used, those before a resume included."""
        return (self._done_before + totals.samples) / self._samples_per_epoch

    def look(self, totals: Totals) -> None:
        """Show the totals if it is time to."""
        if not totals.first_fetch:
            return
        if totals.now - max(self._shown.now, totals.first_fetch) >= self._every:
            self._progress.update(self._report(totals, self._shown))
            self._shown = totals
        if totals.now - max(self._recorded.now, totals.first_fetch) >= self._job.config.run.report:
            self._record(totals)

    def _record(self, totals: Totals, **more: Any) -> None:
        self.recorder.metric(self._report(totals, self._recorded) | more)
        self._recorded = totals

    def evaluated(self, totals: Totals, epoch: float, loss: float, accuracy: float) -> bool:
        """Record an evaluation on the test data; return whether it reached the run's target accuracy.

        `accuracy` is NaN where correctness means nothing.
        """
        self._latest |= {"test_loss": loss, "test_accuracy": None if isnan(accuracy) else accuracy}
        self._record(totals, epoch=epoch)
        self._progress.update(self._report(totals, self._shown))
        self._shown = totals
        target = self._job.config.run.target_accuracy
        return target is not None and accuracy >= target

    def _report(self, totals: Totals, before: Totals) -> dict[str, Any]:
        samples = totals.samples - before.samples
        seconds = totals.seconds - before.seconds
        if samples > 0:
            self._latest["train_loss"] = (totals.loss - before.loss) / samples
        busy = sum(totals.busy_seconds) - sum(before.busy_seconds)
        servers = len(totals.busy_seconds)
        return {
            "time": totals.seconds,
            "samples": self._done_before + totals.samples,
            "epoch": self.epoch(totals),
            **self._latest,
            "samples_per_second": samples / seconds if seconds > 0 else None,
            "staleness": self._staleness(totals),
            "pushes": totals.pushes,
            "fetches": totals.fetches,
            "bytes_pushed": totals.bytes_pushed,
            "bytes_fetched": totals.bytes_fetched,
            "server_load": min(1.0, busy / servers / seconds) if servers and seconds > 0 else None,
            "waiting": totals.waiting_seconds / totals.seconds if totals.seconds > 0 else None,
        }

    @staticmethod
    def _staleness(totals: Totals) -> dict[str, float]:
        return staleness_statistics(totals.staleness, totals.staleness_sum, totals.staleness_max)

    def close(self, totals: Totals, **more: Any) -> dict[str, Any]:
        """Write the summary and return it.

        Parameters
        ----------
        totals : Totals
            Of the finished run.
        more
            What the engine adds: ranks, servers, replicas, partitions, interrupted.
        """
        self._progress.close()
        seconds = totals.trained_seconds
        summary = {
            "algorithm": self._job.config.algorithm.name,
            **more,
            "epochs": self.epoch(totals),
            "samples": totals.samples,
            "seconds": seconds,
            "samples_per_second": totals.samples / seconds if seconds > 0 else 0.0,
            **self._latest,
            "staleness": self._staleness(totals),
            "staleness_histogram": totals.staleness[: min(totals.staleness_max + 1, len(totals.staleness))].tolist(),
            "pushes": totals.pushes,
            "fetches": totals.fetches,
            "bytes_pushed": totals.bytes_pushed,
            "bytes_fetched": totals.bytes_fetched,
            "failures": 0,
            "recoveries": 0,
            "run_dir": str(self._job.directory),
        }
        self.recorder.summary(summary)
        return summary
