"""Decisions of a running job: when to save, to test and to stop, and which events to record.

A `mpidl.roles.run_control.RunControl` passes events to a `Supervisor` and has its instructions carried out. The
supervisor itself reads no clock and touches neither files nor MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, nan
from typing import Any

from msgspec.structs import asdict

from mpidl.algorithms.coordination import Iteration
from mpidl.data.schedule import Schedule
from mpidl.engines.totals import Totals, from_state, to_state
from mpidl.errors import NOT_FINITE
from mpidl.job.goal import Goal
from mpidl.metrics.figures import SPLITS
from mpidl.roles import events
from mpidl.roles.events import Event, Fail, Finish, Instruction, Keep, Log, ReduceRates, Save, Stop, Test
from mpidl.roles.monitor import Monitor, Plateau
from mpidl.storage.position import Best, Position

#: The goal of a run that only has to end.
ANY = Goal()
#: What `Supervisor.state` has as it is.
STATE = (
    "saved_at", "saved_batches", "interim_at", "interim_batches", "epoch", "seconds_to_target", "why_stopped",
    "why_failed", "saved_step", "saving", "saving_interim", "last_ordered", "interrupted", "stopped", "testing",
    "finished",
)  # fmt: skip

#: Advice on objectives that are NaN or infinite: a line search finds the rate.
NO_OBJECTIVE = "check the data, the loss and [algorithm]; with run.terminate_on_nan = false the run continues"


def _failure(event: Event) -> Fail | None:
    """Return what ends a run if an event says that a loss is NaN or infinite."""
    match event:
        case events.Diverged(worker, portion, loss):
            return Fail(f"the loss is {loss} in portion {portion}: {NOT_FINITE}", worker)
        case events.Iterated(_, iteration) if not isfinite(iteration.objective):
            return Fail(f"the objective is {iteration.objective} after iteration {iteration.number}: {NO_OBJECTIVE}")
        case events.EvaluationEnded():
            for split in SPLITS:
                if not isfinite(loss := event.values.get(f"{split}_loss", 0.0)):
                    return Fail(f"the {split} loss is {loss}: {NOT_FINITE}")
    return None


class Supervisor:
    """Decides what happens in one run.

    At most one checkpoint is being written at a time. After `TrainingEnded` come the last checkpoint, unless a signal
    has asked for it before, the final evaluation unless there was a signal, and `Finish`. Nothing follows `Finish` nor
    `Fail`.

    `position` is where the run begins: that of a checkpoint on disk if it is `resumed`. `now` is in seconds of the
    run's clock, virtual if the events' times are; `every` is the seconds between checkpoints, and an interim one is due
    `interim` seconds after any other. `goal` says how evaluations end the run, and which checkpoint is its best, so far
    `best`. `plateau`, if any, reduces rates by evaluations. If `terminate_on_nan`, the run fails when a loss is NaN or
    infinite. If fewer than `min_workers` live while it trains, it fails after a last checkpoint.

    `trained` has the totals of `TrainingEnded`, None before it.

    If the algorithm is `coordinated`, checkpoints are saved between its coordinator's iterations, the model is tested
    after an iteration that completes an epoch's worth of samples, and the run stops after an iteration only.
    """

    def __init__(
        self,
        schedule: Schedule,
        position: Position,
        *,
        now: float,
        every: float,
        interim: float = inf,
        resumed: bool = False,
        coordinated: bool = False,
        goal: Goal = ANY,
        best: Best | None = None,
        terminate_on_nan: bool = True,
        plateau: Plateau | None = None,
        min_workers: int = 1,
    ) -> None:
        self._schedule, self._start, self._every, self._every_interim = schedule, position, every, interim
        self._coordinated, self._goal = coordinated, goal
        self._monitor, self._plateau = Monitor(goal, position.epoch, best), plateau
        self._saved_at, self._resumed, self._terminate_on_nan = now, resumed, terminate_on_nan
        self._min_workers = min_workers
        # Batches that had been computed when the last checkpoint was ordered; and the last one, interim or not.
        self._saved_batches = self._interim_batches = 0
        self._interim_at = now
        self.trained: Totals | None = None
        self._iteration: Iteration | None = None
        self._epoch = position.epoch
        self._seconds_to_target: float | None = None
        self._why_stopped: str | None = None
        self._why_failed: str | None = None
        self._saved_step = position.step
        self._saving = self._saving_interim = self._last_ordered = False
        self._interrupted = self._stopped = self._testing = self._finished = False

    def state(self) -> dict[str, Any]:
        """Return the state for another supervisor of the same run, without a coordinator's last iteration."""
        return {name: getattr(self, f"_{name}") for name in STATE} | {
            "trained": None if self.trained is None else to_state(self.trained),
            "monitor": self._monitor.state(),
            "plateau": self._rates(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state` of another, which may have been encoded."""
        for name in STATE:
            setattr(self, f"_{name}", state[name])
        self.trained = None if state["trained"] is None else from_state(state["trained"])
        self._monitor.load(state["monitor"])
        if self._plateau is not None:
            self._plateau.load(state["plateau"])

    @property
    def best(self) -> Best | None:
        """The best checkpoint that is on disk."""
        return self._monitor.best

    def handle(self, event: Event) -> list[Instruction]:
        """Return what is to be done after an event, in order."""
        if self._finished:
            return []
        if self._terminate_on_nan and (failure := _failure(event)) is not None:
            self._finished = True
            return [failure]
        match event:
            case events.Diverged():
                return []
            case events.Started():
                return [] if self._resumed else self._save(Totals(self._saved_at))
            case events.TrainingEnded():
                self._stopped, self.trained = True, event.totals
                return self._end()
            case events.Unanswered():
                self._interrupted = self._stopped = self._finished = True
                self.trained, why = event.totals, f"{event.why}; step {self._saved_step} is saved"
                return [Finish(True, self._seconds_to_target, why, self.best)]
            case events.Looked():
                return [] if self._coordinated else self._save_if_due(event.totals)
            case events.Iterated():
                return self._iterated(event.totals, event.iteration)
            case events.EvaluationEnded():
                return self._evaluated(event)
            case events.CheckpointEnded():
                return self._saved(event)
            case events.Signalled():
                return self._signalled()
            case events.Failed():
                return self._failed(event)
            case events.Recovered():
                return [self._replaced(event), *self._save_again()]
            case events.TakenOver():
                return [*self._save_again(), *([Test(final=True)] if self._testing else [])]

    def _iterated(self, totals: Totals, iteration: Iteration) -> list[Instruction]:
        self._iteration = iteration
        before, self._epoch = self._epoch, self._position(totals).epoch
        instructions: list[Instruction] = []
        if iteration.backups:
            details = {"iteration": iteration.number, "backups": iteration.backups, "won": iteration.won}
            instructions.append(Log("backups", details))
        instructions += self._save_if_due(totals)
        if (
            self._interrupted
            or self._why_failed
            or self._epoch >= self._schedule.steps / self._schedule.portions.steps_per_epoch
        ):
            instructions += self._stop()
        elif int(self._epoch) > int(before):
            instructions.append(Test())
        return instructions

    def _evaluated(self, event: events.EvaluationEnded) -> list[Instruction]:
        value, target = event.values.get(self._goal.figure, nan), self._goal.target
        self._monitor.evaluated(value, event.epoch)
        reached = target is not None and target.reached(value)
        if reached and self._seconds_to_target is None:
            self._seconds_to_target = self._start.seconds + event.seconds
        if self._testing:
            return self._finish()
        slower: list[Instruction] = []
        if self._plateau is not None and self._plateau.evaluated(value, event.epoch):
            slower.append(ReduceRates(self._plateau.reductions))
        why = f"the target {target} is reached" if reached else self._monitor.exhausted(event.epoch)
        return slower + ([] if why is None else self._stop(why))

    def _signalled(self) -> list[Instruction]:
        if self._interrupted:
            return []
        self._interrupted = True
        return [*self._save_and_stop(), Log("interrupted")]

    @staticmethod
    def _replaced(event: events.Recovered) -> Log:
        found = asdict(event)
        return Log("handover" if found.pop("drained") else "recovery", found)

    def _failed(self, event: events.Failed) -> list[Instruction]:
        found = asdict(event)
        workers, log = found.pop("workers"), Log("failure", found)
        if workers >= self._min_workers or self._why_failed is not None or self.trained is not None:
            return [log]
        live = "1 worker is left" if workers == 1 else f"{workers} workers are left"
        self._why_failed = f"{live}, topology.min_workers is {self._min_workers}"
        return [log, *self._save_and_stop()]

    def _save_and_stop(self) -> list[Instruction]:
        if self._coordinated or self._last_ordered:
            return []  # A coordinator's iteration is completed first.
        self._saving, self._saving_interim, self._last_ordered = True, False, True
        return [Save(last=True, rates=self._rates())]

    def _stop(self, why: str | None = None) -> list[Instruction]:
        """Return how to stop; `why` if an evaluation is the reason."""
        if self._stopped:
            return []
        self._stopped, self._why_stopped = True, why
        return [Stop()] if why is None else [Log("stopped", {"why": why}), Stop()]

    # Checkpoints.

    def _save_if_due(self, totals: Totals) -> list[Instruction]:
        if self._saving or self._last_ordered:
            return []
        due = totals.now - self._saved_at >= self._every and totals.batches != self._saved_batches
        if due or self._monitor.waits:
            return self._save(totals)
        due = totals.now - self._interim_at >= self._every_interim and totals.batches != self._interim_batches
        return self._save(totals, interim=True) if due else []

    def _save(self, totals: Totals, interim: bool = False) -> list[Instruction]:
        self._saving, self._saving_interim = True, interim
        self._interim_at, self._interim_batches = totals.now, totals.batches
        if not interim:
            self._saved_at, self._saved_batches = totals.now, totals.batches
            self._monitor.ordered()
        position = self._position(totals) if self._coordinated else None
        return [Save(position=position, rates=self._rates(), interim=interim)]

    def _save_again(self) -> list[Instruction]:
        """Return how to order again the checkpoint that is being written."""
        if not self._saving:
            return []
        if not self._coordinated:
            last = self._last_ordered and self.trained is None
            return [Save(last, rates=self._rates(), interim=self._saving_interim)]
        # Between two iterations, or at the end.
        self._saving, self._last_ordered, self._saved_at, self._saved_batches = False, False, -inf, -1
        return [] if self.trained is None else self._end()

    def _rates(self) -> dict[str, Any] | None:
        return None if self._plateau is None else self._plateau.state()

    def _saved(self, event: events.CheckpointEnded) -> list[Instruction]:
        assert self._saving, "no checkpoint was ordered"
        self._saving, self._interim_at = False, event.now
        if not (event.complete or self._saving_interim):
            self._saving, self._saved_at = self._last_ordered, event.now
            return self._save_again() if self._saving or self.trained is None else self._end()
        instructions: list[Instruction] = []
        if not self._saving_interim:
            self._saved_at, self._saved_step = event.now, event.step
            instructions = [Log("checkpoint", {"step": event.step}), *self._keep()]
        elif event.complete:
            instructions = [Log("checkpoint", {"step": event.step, "mirror": True})]
        return instructions + (self._end() if self.trained is not None else [])

    def _keep(self) -> list[Instruction]:
        """Return what is to be done if the checkpoint saved last is the best."""
        best = self._monitor.saved(self._saved_step)
        return [] if best is None else [Keep(best)]

    def _position(self, totals: Totals) -> Position:
        """Return where an algorithm's coordinator is; samples that workers compute twice count once."""
        start, iteration = self._start, self._iteration
        samples = start.samples + (iteration.samples if iteration is not None else 0)
        return Position(
            step=start.step + totals.batches,
            samples=samples,
            epoch=samples / self._schedule.portions.samples,
            next_portion=0,
            unfinished=[],
            state=start.state if iteration is None else iteration.state,
            seconds=start.seconds + totals.seconds,
        )

    # The end.

    def _end(self) -> list[Instruction]:
        """Return what comes next once the replicas have ended: last checkpoint, final evaluation, summary."""
        if self._saving:
            return []
        if not self._last_ordered:
            assert self.trained is not None, "the replicas have not ended"
            self._last_ordered = True
            return self._save(self.trained)
        if self._why_failed is not None:
            self._finished = True
            return [Fail(f"{self._why_failed}; step {self._saved_step} is saved", passing=True)]
        if self._interrupted:
            return self._finish()
        self._testing = True
        return [Test(final=True)]

    def _finish(self) -> list[Instruction]:
        self._finished = True
        self._monitor.ordered()  # The last checkpoint is of what was evaluated at the end.
        kept = self._keep()
        return [*kept, Finish(self._interrupted, self._seconds_to_target, self._why_stopped, self.best)]
