"""Events, of which a `mpidl.roles.supervision.Supervisor` is notified, and the instructions with which it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from mpidl.algorithms.coordination import Iteration
from mpidl.engines.totals import Totals
from mpidl.shards.policies import PushHeader
from mpidl.storage.position import Best, Position


class Started(Struct, frozen=True):
    """Everything is ready to train."""


class Looked(Struct, frozen=True):
    """The totals were taken while the replicas train."""

    totals: Totals


class TrainingEnded(Looked, frozen=True):
    """The totals were taken when all replicas had ended and every push had been applied."""


class Unanswered(Looked, frozen=True):
    """Ranks don't answer for long after a signal, or hang after the last checkpoint; `why` is a part of a line."""

    why: str


class Iterated(Struct, frozen=True):
    """The algorithm's coordinator has completed an iteration."""

    totals: Totals
    iteration: Iteration


class Diverged(Struct, frozen=True):
    """The loss of a batch, computed by a worker, is NaN or infinite."""

    worker: int
    portion: int
    loss: float


class EvaluationEnded(Struct, frozen=True):
    """The parameters were evaluated.

    `seconds` is the training time before the evaluation, since the run began or was resumed, and `epoch` the number of
    epochs trained. `values` are figures, such as "test_loss" or "validation_accuracy"; NaN where one has no meaning.
    """

    seconds: float
    epoch: float
    values: Mapping[str, float]


class CheckpointEnded(Struct, frozen=True):
    """The checkpoint that was ordered last is complete, or is an interim one that can't be completed.

    `now` is in seconds of the run's clock.
    """

    now: float
    step: int
    complete: bool = True


class Signalled(Struct, frozen=True):
    """A signal asks the run to stop; may be told more than once."""


class Failed(Struct, frozen=True):
    """The process that played a rank has died.

    Attributes
    ----------
    rank : int
    role : str
        That of the rank, such as "server 0".
    host : str
    pid : int
    signal : str or None
        The signal that ended the process, such as "SIGKILL", if one did and is known.
    noticed : float
        When another process noticed it, in seconds since the epoch.
    workers : int
        Number of workers that still have a process of their own.
    code : int or None
        The exit code of a process that no signal has ended, if it is known and isn't 0.
    """

    rank: int
    role: str
    host: str
    pid: int
    signal: str | None
    noticed: float
    workers: int
    code: int | None = None


class Recovered(Struct, frozen=True):
    """Another process has taken over a rank whose process had died, or had left, and continues.

    Attributes
    ----------
    rank : int
    role : str
    by : int
        The process that plays the rank now, by the rank that it began as.
    seconds : float
        Time from the notice of the death until the rank's work continued.
    lost : mapping
        What was lost, such as numbers of pushes and of samples, by name; empty if nothing was.
    drained : bool
        Whether the process had been asked to leave: then it is no recovery from a failure.
    """

    rank: int
    role: str
    by: int
    seconds: float
    lost: Mapping[str, Any]
    drained: bool = False


class TakenOver(Struct, frozen=True):
    """The coordinator's process has died, and another has taken over: what was under way starts again."""


Incident = Failed | Recovered
Ending = TrainingEnded | EvaluationEnded | CheckpointEnded
Event = Started | Looked | Ending | Unanswered | Iterated | Diverged | Signalled | Incident | TakenOver


class Save(Struct, frozen=True):
    """Cut and write a checkpoint; tell `CheckpointEnded` when it is on disk. If one is being written, give that up.

    If `last`, replicas stop where they are cut. `position` is where the run is, if an algorithm's coordinator drives
    it; else the replicas know. `rates` is the state of a rate schedule that follows evaluations. An `interim`
    checkpoint is replaced by the next one.
    """

    last: bool = False
    position: Position | None = None
    rates: dict[str, Any] | None = None
    interim: bool = False


class Test(Struct, frozen=True):
    """Evaluate the parameters and tell `EvaluationEnded`; if `final`, training is over: all but the training data."""

    final: bool = False


class Keep(Struct, frozen=True):
    """Keep a checkpoint that is on disk as the best, and no longer the one before."""

    best: Best


class ReduceRates(Struct, frozen=True):
    """Reduce all rates; this makes it `reductions` times."""

    reductions: int


class Stop(Struct, frozen=True):
    """Hand out no more data."""


class Log(Struct, frozen=True):
    """Record an event of the run."""

    kind: str
    details: dict[str, Any] = {}


class Fail(Struct, frozen=True):
    """End the run at once; its last checkpoint stays as it is.

    `cause` is one line for a person; `worker` is the one that met it, if one did. `passing` says whether the same run,
    started again, may not meet it.
    """

    cause: str
    worker: int | None = None
    passing: bool = False


class Finish(Struct, frozen=True):
    """Write the summary and end the run.

    A run `interrupted` by a signal ends early. `seconds_to_target` is the training time of the whole run until the
    target was reached. `stopped` says why an evaluation ended it before its last epoch. `best` is the best checkpoint,
    if the run keeps it.
    """

    interrupted: bool
    seconds_to_target: float | None
    stopped: str | None = None
    best: Best | None = None


Instruction = Save | Test | Keep | ReduceRates | Stop | Log | Fail | Finish


def dropped(push: PushHeader, portion: Callable[[int], int]) -> Log:
    """Return the record of a push that a shard's policy left out; `portion` returns that of a batch's number."""
    portions = sorted({portion(batch) for batch in push.batches})
    return Log("drop", {"worker": push.worker, "portions": portions, "staleness": push.staleness})


def lost(
    worker: int, push: int, batches: tuple[int, int], portions: Iterable[int], shard: int | None, chunk: int | None
) -> dict[str, Any]:
    """Return the details of an event `lost`: a chunk of a push, or all that the shards lacked of it.

    Parameters
    ----------
    worker : int
    push : int
        Ordinal of the worker's push, from 0.
    batches : (int, int)
        Numbers of the first and the last minibatch that the push was computed on.
    portions : iterable of int
        Those of these batches.
    shard, chunk : int or None
        The only chunk that is lost.
    """
    where = {"shard": shard, "chunk": chunk}
    return {"worker": worker, "push": push, "batches": batches, "portions": sorted(set(portions)), **where}
