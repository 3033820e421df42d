"""Instructions: what a `mpidl.roles.supervision.Supervisor` answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mpidl.shards.policies import PushHeader
from mpidl.storage.position import Best, Position


@dataclass(frozen=True, slots=True)
class Save:
    """Cut and write a checkpoint; tell `Saved` when it is on disk. If one is being written, give that up.

    If `last`, replicas stop where they are cut. `position` is where the run is, if an algorithm's coordinator drives
    it; else the replicas know. `rates` is the state of a rate schedule that follows evaluations. An `interim`
    checkpoint is replaced by the next one.
    """

    last: bool = False
    position: Position | None = None
    rates: dict[str, Any] | None = None
    interim: bool = False


@dataclass(frozen=True, slots=True)
class Test:
    """Evaluate the parameters and tell `Evaluated`; `final` if training is over: all splits but the training data."""

    final: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a checkpoint that is on disk as the best, and no longer the one before."""

    best: Best


@dataclass(frozen=True, slots=True)
class Slow:
    """Reduce all rates; this makes it `reductions` times."""

    reductions: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand out no more data."""


@dataclass(frozen=True, slots=True)
class Log:
    """Record an event of the run."""

    kind: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """End the run at once; its last checkpoint stays as it is.

    `cause` is one line for a person; `worker` is the one that met it, if one did. `passing` says whether the same run,
    started again, may not meet it.
    """

    cause: str
    worker: int | None = None
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Write the summary and end the run.

    A run `interrupted` by a signal ends early. `seconds_to_target` is the training time of the whole run until the
    target was reached. `stopped` says why an evaluation ended it before its last epoch. `best` is the best checkpoint,
    if the run keeps it.
    """

    interrupted: bool
    seconds_to_target: float | None
    stopped: str | None = None
    best: Best | None = None


Instruction = Save | Test | Keep | Slow | Stop | Log | Fail | Finish


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
