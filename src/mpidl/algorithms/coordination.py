"""The requests of a coordinator's generator (Dean et al. 2012, section 4.2), and the units of work of its replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

import numpy as np

from mpidl.data.batch import Minibatch
from mpidl.data.schedule import Portions
from mpidl.shards.vectors import Operation

#: Largest number of segments in an evaluation.
SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class Operate:
    """Let all servers execute operations.

    Answer: a list of the results of all `Dot` and `Read` among them, in order: floats and `Parts`.
    """

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a batch with a vector for its gradient.

    Attributes
    ----------
    vector : str
        Name of the vector to which the batches' gradients are added, each times the batch's weight.
    first, count : int
        The portions [first, first + count) of the data, modulo their number.
    """

    vector: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Let the replicas compute the loss and the gradient of a batch at the shards' `parameters`.

    The vectors of the segments are set to 0 first. Answer: an `Evaluation`.

    Attributes
    ----------
    segments : tuple of Segment
    task : int
        What replicas compute instead of the gradient, if the algorithm has several such tasks: `Unit.task`.
    """

    segments: tuple[Segment, ...]
    task: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an `Evaluate`.

    Attributes
    ----------
    losses, weights : tuple of float
        For each segment, the sum of the batches' losses, each times the batch's weight, and the sum of these weights.
    samples : tuple of int
        For each segment, the number of samples.
    portions : int
        Number of portions accrued.
    backups, won : int
        Number of units assigned to a second replica, and of those that the second one finished first.
    waiting : float
        Seconds from the first assignment of the last unit to the end of the evaluation.
    """

    losses: tuple[float, ...]
    weights: tuple[float, ...]
    samples: tuple[int, ...]
    portions: int
    backups: int
    won: int
    waiting: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """Report an iteration; the engine saves a checkpoint when one is due. Answer: whether to stop.

    Attributes
    ----------
    number : int
        The iteration, from 1.
    objective : float
        Mean loss of the batch.
    gradient_norm : float
        Euclidean norm of the gradient.
    step : float
        Length of the accepted step, in units of the direction.
    evaluations : int
        Number of evaluations of the objective since the previous iteration.
    total_evaluations : int
        Number of evaluations of the objective since the beginning of the run.
    samples : int
        Number of samples whose gradients have been accrued since the coordinator began.
    portions, backups, won, waiting
        Sums over every `Evaluation` since the previous iteration.
    state : dict
        Scalars from which a coordinator resumes.
    operating : float
        Seconds since the previous iteration in which replicas had to wait for operations; set by the engine.
    messages : int
        Number of messages between coordinator and servers since the previous iteration; set by the engine.
    """

    number: int
    objective: float
    gradient_norm: float
    step: float
    evaluations: int
    total_evaluations: int
    samples: int
    portions: int
    backups: int
    won: int
    waiting: float
    state: dict[str, object]
    operating: float = 0.0
    messages: int = 0


CoordinatorRequest = Operate | Evaluate | Iteration


class UnitData(NamedTuple):
    """The data of a unit: the segment of the evaluation, from 0, and portions modulo the number in the data."""

    segment: int
    portions: range


def cut_units(segments: Sequence[Segment], size: int) -> list[UnitData]:
    """Cut the segments of a batch into units of at most `size` consecutive portions."""
    return [
        UnitData(number, range(first, min(first + size, segment.first + segment.count)))
        for number, segment in enumerate(segments)
        for first in range(segment.first, segment.first + segment.count, size)
    ]


def targets(segments: Sequence[Segment], units: Sequence[UnitData]) -> tuple[list[str], list[str]]:
    """Return the names of an evaluation's vectors, and for each unit that of its segment."""
    vectors = [segment.vector for segment in segments]
    return vectors, [vectors[unit.segment] for unit in units]


def minibatches(unit: UnitData, portions: Portions) -> tuple[Minibatch, ...]:
    """Return the minibatches of a unit; its portions are those of the first epoch."""
    numbers = (portion % portions.per_epoch for portion in unit.portions)
    return tuple(minibatch for number in numbers for minibatch in portions.minibatches(number))


def segment_sums(
    segments: Sequence[Segment], units: Sequence[UnitData], losses: np.ndarray, weights: np.ndarray, portions: Portions
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]:
    """Return the sums of losses and weights and the number of samples of each segment, given those of all units."""
    sums, totals, samples = [], [], []
    for number in range(len(segments)):
        own = [i for i, unit in enumerate(units) if unit.segment == number]
        sums.append(fsum(losses[own]))
        totals.append(fsum(weights[own]))
        samples.append(sum(len(portions.indices(p % portions.per_epoch)) for i in own for p in units[i].portions))
    return tuple(sums), tuple(totals), tuple(samples)
