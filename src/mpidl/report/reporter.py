"""Records, figures on the terminal and the summary, made from a run's totals."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec.structs import asdict

from mpidl.algorithms.coordination import Iteration
from mpidl.engines import monotonic
from mpidl.engines.totals import Totals
from mpidl.errors import shown
from mpidl.job.checks import scoring
from mpidl.job.ownership import own_positions
from mpidl.job.placed import PlacedJob
from mpidl.launch import environment
from mpidl.metrics.figures import Figures, known
from mpidl.report.lines import Title
from mpidl.report.progress import COLUMNS, choose, show_on_terminal
from mpidl.report.ranks import StatusFile
from mpidl.report.rates import SHORTEST_SPAN, Rates, RecentLoss, counts, means
from mpidl.report.recorder import Recorder
from mpidl.report.summary import Summary
from mpidl.report.text import as_word, continuing, counted, died, replaced, resumption, size
from mpidl.storage.position import Best
from mpidl.topology.placement import placement
from mpidl.topology.roles import Roles

#: Seconds between two redraws of the progress bar.
REDRAW_EVERY = 0.5
#: Interval of recorded evaluations and iterations as a fraction of the time so far; at most that of reports. Tiny ones,
#: a hundred a second, would fill a disk.
SPACING = 1e-3

#: Part of an epoch that a quotient of samples may lack of a whole one.
ROUNDING = 1e-9

#: Attributes that `Reporter.state` contains unchanged.
STATE = (
    "_origin", "_recorded_at", "_spaced_at", "due", "_reached", "_complete", "_interrupted", "_saved", "_iteration",
    "_accrued", "_logged",
)  # fmt: skip
#: The line about an event, for those that the summary counts.
INCIDENTS = {"failure": died, "recovery": replaced, "handover": replaced}

#: Attributes of the last `Iteration` in a record.
ITERATION = [name for name in Iteration.__struct_fields__ if name not in ("samples", "state")]


class Reporter:
    """Writes a run's records and shows its progress.

    Parameters
    ----------
    origin : mapping, optional
        Items of the summary about the origin of its figures; None if the reporter resumes from the state of another,
        which has shown the run's title.

    Attributes
    ----------
    due : float
        Time of the next record, in seconds on the clock of the totals.
    status : StatusFile
    present : callable
        Returns the present parameters as the job's flat vector; set by the coordinator, or by a run in one process.
    """

    present: Callable[[], np.ndarray]

    def __init__(self, placed: PlacedJob, recorder: Recorder, origin: Mapping[str, Any] | None = None) -> None:
        job = placed.job
        self._placed = placed
        self._job, self.recorder, self._origin = job, recorder, origin or {}
        self._done_before, self._seconds_before = placed.position.samples, placed.position.seconds
        self._owners_before = own_positions(job.checkpoint, placed.replicas)
        self._samples_per_epoch = placed.schedule.portions.samples
        total = min(placed.schedule.steps * job.config.data.batch, placed.schedule.epochs * self._samples_per_epoch)
        model = size(placed.layout.size, placed.layout.size * job.dtype.itemsize)
        title = f"{recorder.directory}: {model}"
        self._progress = choose(
            Title(
                title,
                total / self._samples_per_epoch,
                self._samples_per_epoch,
                scoring(job.original, job.dataset).accuracy,
                next(iter(job.evaluated), "test"),
                job.algorithm.coordinated,
            ),
            begun=origin is None,
        )
        for note in placed.notes if origin is not None else ():
            self._progress.write(f"mpidl: {note}")
        recorder.loggers.tell = lambda line: self._progress.write(f"mpidl: {line}")
        self._every = REDRAW_EVERY if self._progress.drawn else job.config.run.report
        self._shown_at = self._recorded_at = self._spaced_at = self.due = 0.0
        self._began = monotonic.now()
        self._recent = RecentLoss(self._samples_per_epoch, job.config.run.report)
        # An evaluated epoch is over, even if some ranks have yet to post their work in it.
        self._reached = 0.0
        self._complete = self._interrupted = False
        self._saved = None if job.checkpoint is None else placed.position.step
        evaluated = {
            f"{split}_{name}": None for split in [*job.evaluated, "test"] for name in Figures(job.metrics).names
        }
        self._losses: dict[str, Any] = {"train_loss": None, **evaluated}
        self._losses |= {name: recorder.last.get(name) for name in self._losses}
        self._iteration: dict[str, Any] = {}
        # What replicas had logged at the last record.
        self._logged: dict[str, Any] = {}
        # Samples accrued by a coordinator; workers compute some of them twice.
        self._accrued: int | None = None
        self._rates = Rates(self._done_before, self._seconds_before, job.config.run.report)
        if origin is not None and job.continues:
            step, samples = placed.position.step, placed.position.samples
            self.recorder.event("resume", rank=0, role="coordinator", step=step, samples=samples)
        self.status = StatusFile(recorder, job.config.run.report)

    def state(self) -> dict[str, Any]:
        """Return the state from which a reporter of the same run in another process resumes."""
        return {name: getattr(self, name) for name in STATE} | {
            "losses": dict(self._losses),
            "recent": self._recent.state(),
            "rates": self._rates.state(),
            "files": self.recorder.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state` of another, which may have been encoded; cut off what it wrote afterwards."""
        for name in STATE:
            setattr(self, name, state[name])
        self._losses = dict(state["losses"])
        self._recent.load(state["recent"])
        self._rates.load(state["rates"])
        self.recorder.load(state["files"])

    def epoch(self, totals: Totals) -> float:
        """Return the number of epochs of data used, including those before a resume."""
        samples = totals.samples - totals.again if self._accrued is None else self._accrued
        return (self._done_before + samples) / self._samples_per_epoch

    def log(self, kind: str, rank: int, role: str, **details: Any) -> None:
        """Record an event, as `Recorder.event` does; when a signal stops the run, report what is saved.

        An MPI launcher kills its ranks soon after a signal, and stops forwarding their output at once, unlike
        ``mpidl train -n``.
        """
        self.recorder.event(kind, rank, role, **details)
        if kind in INCIDENTS:
            self._progress.write(f"mpidl: {INCIDENTS[kind](rank, role, details)}")
        if kind == "stopped":
            self._progress.write(f"mpidl: stopping: {details['why']}")
        if kind == "interrupted":
            self._interrupted = True
        saved = kind == "checkpoint" and "mirror" not in details
        if saved:
            self._saved = details["step"]
        if environment.under_foreign_launcher():
            directory = self.recorder.directory
            where = "nothing yet" if self._saved is None else f"{directory}, step {self._saved}"
            if kind == "interrupted":
                show_on_terminal(f"mpidl: stopping; saved so far: {where}")
            elif self._interrupted and saved:
                advice = continuing("train", directory, environment.world().size)
                if self._job.script.shared:
                    advice = resumption(str(directory), self._job.config.run.name)
                show_on_terminal(f"mpidl: saved: {where}; {advice}")

    def assigned(self, roles: Roles, notes: Sequence[str] = ()) -> None:
        """Record and show the roles of each host, with lines about them."""
        lines = placement(roles)
        self.recorder.event("placement", rank=0, role="coordinator", hosts=lines)
        hosts, job = counted(len(set(roles.hosts)), "host"), self._origin["job_id"]
        job = "" if job is None else f", job {job}"
        self._progress.write(f"{len(roles.hosts)} ranks on {hosts}, {self._origin['mpi']}{job}")
        for line in lines:
            self._progress.write(shown(line, COLUMNS - 1))
        for note in notes:
            self._wrap(note)

    def placed(self, workers: Sequence[str], servers: Sequence[str] = ()) -> None:
        """Record and show the devices of the workers and servers that had a choice."""
        for role, devices in (("workers", workers), ("servers", servers)):
            for device, ranks in Counter(devices).items():
                self.recorder.event("device", rank=0, role="coordinator", place=device, **{role: ranks})
        parts = [f"computing on {_counted(workers)}"] if workers else []
        parts += [f"shards on {_counted(servers)}"] if servers else []
        self._wrap("; ".join(parts))

    def _wrap(self, text: str) -> None:
        for line in textwrap.wrap(text, COLUMNS - 1, break_on_hyphens=False):
            self._progress.write(line)

    def status_due(self, totals: Totals) -> None:
        """Write the run's status if it is time to."""
        self.status.write_due(lambda: self._report(totals))

    def report_due(self, totals: Totals) -> None:
        """Show and record the totals if they are due."""
        self.status_due(totals)
        if not totals.first_fetch:
            return
        self.due = max(self._recorded_at, totals.first_fetch) + self._job.config.run.report
        due = totals.now >= self.due
        self._measure(totals, mark=due)
        if monotonic.now() - max(self._shown_at, self._began) >= self._every:
            self._show(self._report(totals))
        if due:
            self._record(self._report(totals), totals)

    def evaluated(self, totals: Totals, epoch: float, values: Mapping[str, float], final: bool = False) -> None:
        """Record an evaluation, unless evaluations are too frequent.

        Parameters
        ----------
        totals : Totals
            The totals at the beginning of the evaluation.
        epoch : float
            Epochs trained before it.
        values : mapping of str to float
            The figures, such as "test_loss"; NaN where one is undefined.
        final : bool
            Whether the run is at its end. The report's rates are then those of the whole run.
        """
        self._losses |= known(values)
        self._measure(totals, epoch=epoch)
        if final:
            self._end(totals, evaluated=True)
            return
        self._reached = epoch
        report = self._report(totals) | {"epoch": epoch}
        self._record_spaced(report, totals)
        if monotonic.now() - self._shown_at >= SHORTEST_SPAN:
            self._show(report, evaluated=True)

    def iterated(self, iteration: Iteration) -> None:
        """Remember an iteration of a coordinator for the next records."""
        self._accrued = iteration.samples
        last = {name: getattr(iteration, name) for name in ITERATION}
        self._iteration = {"gradient_norm": iteration.gradient_norm, "iteration": last}

    def report_iteration(self, totals: Totals) -> None:
        """Record the last iteration, unless iterations are too frequent."""
        self._measure(totals)
        self._record_spaced(self._report(totals), totals)

    def _end(self, totals: Totals, evaluated: bool = False) -> None:
        """Show and record the last report, with the whole run's rates."""
        self._rates.end(totals)
        report = self._report(totals) | {"epoch": self.epoch(totals)}
        self._record(report, totals)
        self._show(report, evaluated, last=True)
        self.status.write(report)
        self._complete = True

    def _show(self, report: dict[str, Any], evaluated: bool = False, last: bool = False) -> None:
        self._progress.update(report, evaluated, last)
        self._shown_at = monotonic.now()

    def _record_spaced(self, report: dict[str, Any], totals: Totals) -> None:
        spacing = min(self._job.config.run.report, SPACING * (totals.now - totals.first_fetch))
        if totals.now - self._spaced_at >= spacing:
            self._record(report, totals)
            self._spaced_at = totals.now

    def _record(self, report: dict[str, Any], totals: Totals) -> None:
        now = totals.now
        if not self._origin.get("virtual"):
            report = report | {"unix_time": time.time()}
        record = self.recorder.metric(report)
        self._recorded_at, self._logged = now, dict(totals.logged)
        self.due = now + self._job.config.run.report
        self._job.script.callbacks(record, lambda: self._placed.tensors(self.present()))

    def _report(self, totals: Totals) -> dict[str, Any]:
        return {
            "time": self._seconds_before + totals.seconds,
            "samples": self._done_before + totals.samples - totals.again,
            "epoch": max(self.epoch(totals), self._reached),
            **self._losses,
            **self._rates.values,
            **counts(totals),
            **asdict(totals.learning),
            **self._iteration,
            **self._by_owner(totals),
            **means(totals.logged, self._logged),
            "waiting": totals.spent.waiting_seconds / totals.seconds if totals.seconds > 0 else None,
        }

    def _by_owner(self, totals: Totals) -> dict[str, Any]:
        """Return the number of samples of each replica, where they belong to replicas."""
        if self._job.config.data.owned is None:
            return {}
        before = [0 if each is None else each.used for each in self._owners_before]
        return {"owner_samples": [own + done for own, done in zip(totals.spent.samples, before, strict=False)]}

    def _measure(self, totals: Totals, mark: bool = True, epoch: float | None = None) -> None:
        """Compute the training loss and, if enough time has passed, speed and load.

        The loss is that of the last accepted point of an algorithm that iterates; after an `epoch`, that of the last
        whole epoch, or of what there is of the first; and otherwise the recent one.

        Later losses begin only at moments on the run's clock, virtual or not, so that a virtual run's depend on the
        seed alone.
        """
        loss = self._recent.at(totals)
        if self._iteration:
            loss = self._iteration["iteration"]["objective"]
        elif epoch is not None and (whole := totals.epochs.mean(max(0, int(epoch + ROUNDING) - 1))) is not None:
            loss = whole
        if loss is not None:
            self._losses["train_loss"] = loss
        if mark:
            self._recent.mark(totals)
        self._rates.measure(totals)

    def abandon(self) -> None:
        """Close the files of a failed run, which has no summary."""
        self._progress.close()
        self.recorder.close()

    def close(
        self,
        totals: Totals,
        sizes: Mapping[str, float],
        *,
        interrupted: bool,
        seconds_to_target: float | None,
        stopped: str | None,
        best: Best | None,
    ) -> Summary:
        """Show the last report unless an evaluation has, write the summary, close the files and return the summary.

        Parameters
        ----------
        totals : Totals
            The totals of the finished run.
        sizes : mapping of str to int
            See `mpidl.topology.roles.Roles.sizes`.
        interrupted : bool
            Whether a signal ended the run early.
        seconds_to_target : float or None
            Training time until the target was reached.
        stopped : str or None
            Reason for an early end of the run by an evaluation.
        best : Best or None
            The best checkpoint, if the run keeps it.
        """
        if not self._complete:
            self._measure(totals, epoch=self.epoch(totals))
            self._end(totals)
        if shares := totals.spent.shares(totals.trained_seconds):
            self._progress.write(f"workers: {', '.join(f'{name} {part:.0%}' for name, part in shares.items())}")
        self._progress.write(f"draw it: mpidl report {as_word(str(self.recorder.directory))}")
        self._progress.close()
        values = {
            "algorithm": self._job.config.algorithm.name,
            **sizes,
            "interrupted": interrupted,
            "epochs": self.epoch(totals),
            **self._iteration,
            "samples": self._done_before + totals.samples - totals.again,
            "seconds": self._seconds_before + totals.trained_seconds,
            "samples_per_second": self._rates.speed(totals),
            "seconds_to_target": seconds_to_target,
            "stopped": stopped,
            **_best(best),
            **self._losses,
            "accuracy_name": scoring(self._job.original, self._job.dataset).accuracy,
            **counts(totals),
            **self._by_owner(totals),
            **means(totals.logged, {}),
            "failures": self.recorder.counts["failure"],
            "recoveries": self.recorder.counts["recovery"],
            "run_dir": str(self.recorder.directory),
            **self._origin,
        }
        summary = cast("Summary", values)
        self.recorder.summary(summary)
        self.recorder.close()
        return summary


def _best(best: Best | None) -> dict[str, Any]:
    if best is None:
        return {"best_step": None}
    return {"best_step": best.step, "best_epoch": best.epoch, f"best_{best.figure}": best.value}


def _counted(devices: Sequence[str]) -> str:
    """Return the distinct devices as text, each with its number of ranks unless there is only one."""
    counts = Counter(devices)
    return ", ".join(counts if len(counts) == 1 else [f"{device}: {ranks}" for device, ranks in counts.items()])
