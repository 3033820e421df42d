"""Supervision of a run: its events go to the supervisor, whose instructions are carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from mpidl.algorithms.coordination import Iteration
from mpidl.engines.totals import Totals
from mpidl.errors import MpidlError
from mpidl.job.checkpoints import Checkpoints
from mpidl.job.placed import PlacedJob
from mpidl.report.reporter import Reporter
from mpidl.report.summary import Summary
from mpidl.roles import events
from mpidl.roles.events import Fail, Finish, Instruction, Keep, Log, ReduceRates, Save, Stop, Test
from mpidl.roles.monitor import Plateau
from mpidl.roles.supervision import Supervisor


class Executor(Protocol):
    """Carries out what depends on where the run trains: on ranks, or in this process."""

    def signalled(self) -> bool:
        """Return whether a signal has asked the run to stop."""
        ...

    def save(self, save: Save) -> None: ...

    def test(self, test: Test) -> None: ...

    def slow(self, slow: ReduceRates) -> None: ...

    def stop(self) -> None: ...

    def fail(self, fail: Fail) -> NoReturn: ...

    def sizes(self) -> Mapping[str, float]:
        """Return the sizes of the job (see `mpidl.topology.roles.Roles.sizes`), and other figures that it alone has."""
        ...


class RunControl:
    """The control of one run.

    `now` is in seconds of the run's clock, virtual if the events' times are; events name the rank `rank`, unless they
    are about another. `summary` is None until the run has finished.
    """

    def __init__(
        self,
        placed: PlacedJob,
        reporter: Reporter,
        executor: Executor,
        checkpoints: Checkpoints,
        now: float,
        rank: int = 0,
    ) -> None:
        self._reporter, self._executor, self._checkpoints, self._rank = reporter, executor, checkpoints, rank
        job, patience = placed.job, placed.job.config.rate.patience
        self._evaluates = bool(job.evaluated)
        self._supervisor = Supervisor(
            placed.schedule,
            placed.position,
            now=now,
            every=job.config.checkpoint.every,
            interim=checkpoints.interim,
            resumed=job.checkpoint is not None,
            coordinated=job.algorithm.coordinated,
            goal=job.goal,
            best=checkpoints.best,
            terminate_on_nan=job.config.run.terminate_on_nan,
            plateau=None
            if patience is None
            else Plateau(job.goal, patience, placed.position.epoch, placed.position.rates),
            min_workers=job.config.topology.min_workers,
        )
        self.summary: Summary | None = None

    @property
    def trained(self) -> Totals | None:
        """The totals at the end of the training; None before it."""
        return self._supervisor.trained

    @property
    def _end(self) -> Totals:
        return self._supervisor.trained or Totals(0.0)

    def state(self) -> dict[str, Any]:
        """Return the state with which the control in another process continues."""
        return self._supervisor.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state` of another, which may have been encoded."""
        self._supervisor.load(state)
        self._checkpoints.best = self._supervisor.best

    def tell(self, event: events.Event) -> set[type[Instruction]]:
        """Pass an event to the supervisor, and any signal before it; return the kinds of instructions carried out."""
        told: list[events.Event] = [events.Signalled(), event] if self._executor.signalled() else [event]
        if isinstance(event, events.CheckpointEnded):  # This checkpoint is on disk before the signal orders another.
            told.reverse()
        kinds: set[type[Instruction]] = set()
        for each in told:
            for instruction in self._supervisor.handle(each):
                self._carry_out(instruction)
                kinds.add(type(instruction))
        return kinds

    def iterated(self, totals: Totals, iteration: Iteration) -> set[type[Instruction]]:
        """Report an iteration of the algorithm's coordinator; return the kinds of instructions carried out.

        Where an evaluation follows, or the end of the run, the record of that is also the iteration's.
        """
        self._reporter.iterated(iteration)
        kinds = self.tell(events.Iterated(totals, iteration))
        if Stop not in kinds and not (Test in kinds and self._evaluates):
            self._reporter.report_iteration(totals)
        return kinds

    def evaluated(
        self, totals: Totals | None, values: Mapping[str, float], epoch: float | None = None, final: bool = False
    ) -> None:
        """Report an evaluation after `epoch` epochs, by default those of the totals, by default the last ones."""
        totals = totals or self._end
        epoch = self._reporter.epoch(totals) if epoch is None else epoch
        self._reporter.evaluated(totals, epoch, values, final)
        self.tell(events.EvaluationEnded(totals.seconds, epoch, values))

    def log(self, log: Log, role: str = "coordinator") -> None:
        """Record an event of the run."""
        details: dict[str, Any] = {"rank": self._rank, "role": role} | log.details
        try:
            self._reporter.log(log.kind, **details)
        except MpidlError:
            # The signal may come from a launcher that ends the job because another rank has met a full disk.
            if log.kind != "interrupted":
                raise

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Save():
                self._reporter.recorder.check()
                self._executor.save(instruction)
            case Test():
                self._executor.test(instruction)
            case ReduceRates(reductions):
                self._reporter.log("reduction", self._rank, "coordinator", reductions=reductions)
                self._executor.slow(instruction)
            case Stop():
                self._executor.stop()
            case Log():
                self.log(instruction)
            case Keep(best):
                self._checkpoints.keep(best)
            case Fail():
                self._executor.fail(instruction)
            case Finish(interrupted, seconds_to_target, stopped, best):
                self.summary = self._reporter.close(
                    self._end, self._executor.sizes(), interrupted=interrupted,
                    seconds_to_target=seconds_to_target, stopped=stopped, best=best,
                )  # fmt: skip
