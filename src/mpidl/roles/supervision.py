"""What is decided while a run trains: when to save, to test and to stop, and which events to record.

The coordinator of an MPI job and the run in one process tell a `Supervisor` what has happened and carry out the
instructions that it returns. The supervisor itself reads no clock and touches neither files nor MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.data.schedule import Schedule
from mpidl.engines.totals import Totals
from mpidl.shards.policies import PushHeader
from mpidl.storage.position import Position

if TYPE_CHECKING:
    from mpidl.job.job import Job


# Events: what a supervisor is told.


@dataclass(frozen=True, slots=True)
class Started:
    """Everything is ready to train."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The totals were taken while the replicas train.

    Attributes
    ----------
    totals : Totals
    tickets : int or sequence of int
        Number of portions taken so far; in a deterministic run, the number that each worker has taken.
    unfinished : sequence of (int, int)
        The portions taken but not used up, each with the number of its batches that are done.
    """

    totals: Totals
    tickets: int | Sequence[int]
    unfinished: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Trained(Looked):
    """The totals were taken when all replicas had ended and every push had been applied."""


@dataclass(frozen=True, slots=True)
class Iterated:
    """The algorithm's coordinator has completed an iteration."""

    totals: Totals
    iteration: Iteration


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The parameters were evaluated on the test data.

    Attributes
    ----------
    seconds : float
        Training time before the evaluation.
    accuracy : float
        NaN where correctness has no meaning.
    """

    seconds: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint that was ordered last is on disk; `now` is the time in seconds since the epoch."""

    now: float


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal asks the run to stop; may be told more than once."""


Event = Started | Looked | Trained | Iterated | Evaluated | Saved | Signalled


# Instructions: what a supervisor answers.


@dataclass(frozen=True, slots=True)
class Save:
    """Write a checkpoint; tell `Saved` when it is on disk."""

    position: Position


@dataclass(frozen=True, slots=True)
class Test:
    """Evaluate the parameters on the test data and tell `Evaluated`; `final` if training is over."""

    final: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand out no more data."""


@dataclass(frozen=True, slots=True)
class Log:
    """Record an event of the run."""

    kind: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """Write the summary and end the run.

    Attributes
    ----------
    interrupted : bool
        Whether a signal ended the run early.
    seconds_to_target : float or None
        Training time until the target accuracy was reached.
    """

    interrupted: bool
    seconds_to_target: float | None


Instruction = Save | Test | Stop | Log | Finish


def dropped(push: PushHeader) -> Log:
    """Return the record of a push that a shard's policy left out."""
    return Log("drop", {"worker": push.worker, "portions": sorted(set(push.portions)), "staleness": push.staleness})


class Supervisor:
    """Decides what happens in one run.

    At most one checkpoint is being written at a time, and no step is saved twice. After `Trained` come the last
    checkpoint, the final evaluation unless a signal interrupted the run, and `Finish`; nothing follows `Finish`.

    Parameters
    ----------
    schedule : Schedule
        The run's data.
    position : Position
        Where the run begins.
    now : float
        The time in seconds since the epoch; virtual if the events' times are.
    every : float
        Seconds between checkpoints.
    resumed : bool
        Whether `position` is that of a checkpoint on disk.
    coordinated : bool
        Whether the algorithm has a coordinator. Checkpoints are then saved between its iterations, the model is tested
        after an iteration that completes an epoch's worth of samples, and the run stops after an iteration only.
    target_accuracy : float, optional
        Test accuracy at which the run stops.
    """

    def __init__(
        self,
        schedule: Schedule,
        position: Position,
        *,
        now: float,
        every: float,
        resumed: bool = False,
        coordinated: bool = False,
        target_accuracy: float | None = None,
    ) -> None:
        self._schedule, self._start, self._every = schedule, position, every
        self._coordinated, self._target = coordinated, target_accuracy
        self._saved_at, self._saved_step = now, position.step if resumed else None
        self._saving: Position | None = None
        self._last: Position | None = None
        self._iteration: Iteration | None = None
        self._epoch = position.epoch
        self._seconds_to_target: float | None = None
        self._interrupted = self._stopped = self._testing = self._finished = False

    @classmethod
    def for_job(cls, job: Job, now: float) -> Supervisor:
        """Return the supervisor of a job."""
        return cls(
            job.schedule,
            job.position,
            now=now,
            every=job.config.checkpoint.every,
            resumed=job.checkpoint is not None,
            coordinated=job.algorithm.coordinated,
            target_accuracy=job.config.run.target_accuracy,
        )

    def handle(self, event: Event) -> list[Instruction]:
        """Return what is to be done after an event, in order."""
        if self._finished:
            return []
        match event:
            case Started():
                return self._save(self._start)
            case Trained():
                self._stopped, self._last = True, self._position(event.totals, event.tickets, event.unfinished)
                return self._end()
            case Looked():
                return [] if self._coordinated else self._save_if_due(event.totals, event.tickets, event.unfinished)
            case Iterated():
                return self._iterated(event.totals, event.iteration)
            case Evaluated():
                return self._evaluated(event)
            case Saved():
                return self._saved(event.now)
            case Signalled():
                return self._signalled()

    def _iterated(self, totals: Totals, iteration: Iteration) -> list[Instruction]:
        self._iteration = iteration
        before, self._epoch = self._epoch, self._position(totals).epoch
        instructions: list[Instruction] = []
        if iteration.backups:
            details = {"iteration": iteration.number, "backups": iteration.backups, "won": iteration.won}
            instructions.append(Log("backups", details))
        instructions += self._save_if_due(totals)
        if self._interrupted or self._epoch >= self._schedule.steps / self._schedule.steps_per_epoch:
            instructions += self._stop()
        elif int(self._epoch) > int(before):
            instructions.append(Test())
        return instructions

    def _evaluated(self, event: Evaluated) -> list[Instruction]:
        reached = self._target is not None and event.accuracy >= self._target
        if reached and self._seconds_to_target is None:
            self._seconds_to_target = event.seconds
        if self._testing:
            return self._finish()
        return self._stop() if reached else []

    def _signalled(self) -> list[Instruction]:
        if self._interrupted:
            return []
        self._interrupted = True
        # A coordinator's iteration is completed first.
        return [*([] if self._coordinated else self._stop()), Log("interrupted")]

    def _stop(self) -> list[Instruction]:
        if self._stopped:
            return []
        self._stopped = True
        return [Stop()]

    # Checkpoints.

    def _save_if_due(
        self, totals: Totals, tickets: int | Sequence[int] = 0, unfinished: Sequence[tuple[int, int]] = ()
    ) -> list[Instruction]:
        if self._saving is not None or totals.now - self._saved_at < self._every:
            return []
        self._saved_at = totals.now
        return self._save(self._position(totals, tickets, unfinished))

    def _save(self, position: Position) -> list[Instruction]:
        """Save a position, unless there is a checkpoint of its step."""
        if position.step == self._saved_step:
            return []
        self._saving = position
        return [Save(position)]

    def _saved(self, now: float) -> list[Instruction]:
        assert self._saving is not None, "no checkpoint was ordered"
        self._saved_at, self._saved_step, self._saving = now, self._saving.step, None
        return [Log("checkpoint", {"step": self._saved_step}), *(self._end() if self._last is not None else [])]

    def _position(
        self, totals: Totals, tickets: int | Sequence[int] = 0, unfinished: Sequence[tuple[int, int]] = ()
    ) -> Position:
        """Return where the run is; what is unfinished is resumed from its next batch."""
        step, schedule, iteration = self._start.step + totals.batches, self._schedule, self._iteration
        if self._coordinated:
            # Workers compute some samples twice: those count that have been accrued.
            samples = self._start.samples + (iteration.samples if iteration is not None else 0)
            state = iteration.state if iteration is not None else None
            return Position(step, samples, samples / schedule.portions.samples, 0, [], state)
        taken, missed = (tickets, []) if isinstance(tickets, int) else _taken_in_turn(tickets)
        next_portion, waiting = schedule.position(taken)
        passed_over = [(part.portion, part.first) for part in map(schedule.assignment, missed) if part is not None]
        samples = self._start.samples + totals.samples
        rest = sorted([*waiting, *passed_over, *unfinished])
        return Position(step, samples, samples / schedule.portions.samples, next_portion, rest)

    # The end.

    def _end(self) -> list[Instruction]:
        """Return what comes next once the replicas have ended: last checkpoint, final evaluation, summary."""
        if self._saving is not None:
            return []
        assert self._last is not None, "the replicas have not ended"
        if save := self._save(self._last):
            return save
        if self._interrupted:
            return self._finish()
        self._testing = True
        return [Test(final=True)]

    def _finish(self) -> list[Instruction]:
        self._finished = True
        return [Finish(self._interrupted, self._seconds_to_target)]


def _taken_in_turn(tickets: Sequence[int]) -> tuple[int, list[int]]:
    """Return one more than the last ticket taken and the tickets before it that were not, in a deterministic run.

    Worker w's i-th ticket is w + i * workers, and some workers have taken more of theirs than others.
    """
    workers = len(tickets)
    taken = {worker + i * workers for worker, count in enumerate(tickets) for i in range(count)}
    end = max(taken, default=-1) + 1
    return end, sorted(set(range(end)) - taken)
