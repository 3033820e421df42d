"""Events, of which a `mpidl.roles.supervision.Supervisor` is notified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpidl.algorithms.coordination import Iteration
from mpidl.engines.totals import Totals


@dataclass(frozen=True, slots=True)
class Started:
    """Everything is ready to train."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The totals were taken while the replicas train."""

    totals: Totals


@dataclass(frozen=True, slots=True)
class Trained(Looked):
    """The totals were taken when all replicas had ended and every push had been applied."""


@dataclass(frozen=True, slots=True)
class Unanswered(Looked):
    """Ranks don't answer for long after a signal, or hang after the last checkpoint; `why` is a part of a line."""

    why: str


@dataclass(frozen=True, slots=True)
class Iterated:
    """The algorithm's coordinator has completed an iteration."""

    totals: Totals
    iteration: Iteration


@dataclass(frozen=True, slots=True)
class Diverged:
    """The loss of a batch, computed by a worker, is NaN or infinite."""

    worker: int
    portion: int
    loss: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The parameters were evaluated.

    `seconds` is the training time before the evaluation, since the run began or was resumed, and `epoch` the number of
    epochs trained. `values` are figures, such as "test_loss" or "validation_accuracy"; NaN where one has no meaning.
    """

    seconds: float
    epoch: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint that was ordered last is complete, or is an interim one that can't be completed.

    `now` is in seconds of the run's clock.
    """

    now: float
    step: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal asks the run to stop; may be told more than once."""


@dataclass(frozen=True, slots=True)
class Failed:
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


@dataclass(frozen=True, slots=True)
class Recovered:
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


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The coordinator's process has died, and another goes on: what was under way begins anew."""


Incident = Failed | Recovered
Event = (
    Started | Looked | Trained | Unanswered | Iterated | Diverged | Evaluated | Saved | Signalled | Incident | TakenOver
)
