"""Events: what a `mpidl.roles.supervision.Supervisor` is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """The checkpoint that was ordered last is on disk.

    `now` is in seconds of the run's clock.
    """

    now: float
    step: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal asks the run to stop; may be told more than once."""


Event = Started | Looked | Trained | Iterated | Diverged | Evaluated | Saved | Signalled
