"""Algorithms with a coordinator (Dean et al. 2012, section 4.2): its requests, and the units of its replicas."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import fsum, inf
from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Accrue, Fetch, Function, Gradient, NextUnit, loss_and_gradient
from mpidl.data.batch import Minibatch
from mpidl.data.schedule import Portions
from mpidl.parameters import Layout
from mpidl.rules import Rule
from mpidl.shards.vectors import Operation

#: Largest number of segments in an evaluation.
SEGMENTS = 3


class Operate(Struct, frozen=True):
    """Let all servers execute operations.

    Answer: a list of the results of all `Dot` and `Read` among them, in order: floats and `Parts`.
    """

    operations: tuple[Operation, ...]


class BatchSegment(Struct, frozen=True):
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


class Evaluate(Struct, frozen=True):
    """Let the replicas compute the loss and the gradient of a batch at the shards' `parameters`.

    The vectors of the segments are set to 0 first. Answer: an `EvaluationResult`.

    Attributes
    ----------
    segments : tuple of BatchSegment
    task : int
        What replicas compute instead of the gradient, if the algorithm has several such tasks: `Unit.task`.
    """

    segments: tuple[BatchSegment, ...]
    task: int = 0


class EvaluationResult(Struct, frozen=True):
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


class Iteration(Struct, frozen=True):
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
        Sums over every `EvaluationResult` since the previous iteration.
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


def cut_units(segments: Sequence[BatchSegment], size: int) -> list[UnitData]:
    """Cut the segments of a batch into units of at most `size` consecutive portions."""
    return [
        UnitData(number, range(first, min(first + size, segment.first + segment.count)))
        for number, segment in enumerate(segments)
        for first in range(segment.first, segment.first + segment.count, size)
    ]


def targets(segments: Sequence[BatchSegment], units: Sequence[UnitData]) -> tuple[list[str], list[str]]:
    """Return the names of an evaluation's vectors, and for each unit that of its segment."""
    vectors = [segment.vector for segment in segments]
    return vectors, [vectors[unit.segment] for unit in units]


def minibatches(unit: UnitData, portions: Portions) -> tuple[Minibatch, ...]:
    """Return the minibatches of a unit; its portions are those of the first epoch."""
    numbers = (portion % portions.per_epoch for portion in unit.portions)
    return tuple(minibatch for number in numbers for minibatch in portions.minibatches(number))


def evaluated(
    segments: Sequence[BatchSegment], units: Sequence[UnitData], losses: np.ndarray, weights: np.ndarray,
    portions: Portions, backups: int, won: int, waiting: float,
) -> EvaluationResult:  # fmt: skip
    """Return the result of an evaluation, given the sums of losses and weights of all units, each of shape (units,)."""
    sums, totals, samples = [], [], []
    for number in range(len(segments)):
        own = [i for i, unit in enumerate(units) if unit.segment == number]
        sums.append(fsum(losses[own]))
        totals.append(fsum(weights[own]))
        samples.append(sum(len(portions.indices(p % portions.per_epoch)) for i in own for p in units[i].portions))
    accrued = sum(len(unit.portions) for unit in units)
    return EvaluationResult(tuple(sums), tuple(totals), tuple(samples), accrued, backups, won, waiting)


Coordinator = Generator[CoordinatorRequest, Any, None]


class Coordinated(Algorithm):
    """An algorithm with a coordinator that drives the run; replicas compute units of the batches that it asks for.

    It resumes only from a checkpoint with its own coordinator's state. From others it takes the parameters, which
    another algorithm may have trained.

    Attributes
    ----------
    unit : int
        Number of portions that a replica takes at a time and pushes together.
    backups : bool
        Whether outstanding units near the end of a batch are assigned to a second replica.
    """

    default_rule: ClassVar[Rule | None] = None
    coordinated: ClassVar[bool] = True

    unit: int
    backups: bool

    @property
    def exchange(self) -> Exchange:
        return Exchange.OPERATIONS

    def coordinator(
        self, portions: int, state: dict[str, Any] | None = None, layout: Layout | None = None, samples: float = inf
    ) -> Coordinator:
        """Return the coordinator's requests, as a generator.

        Parameters
        ----------
        portions : int
            Number of portions of the data.
        state : dict, optional
            That of an earlier `Iteration`, from which the coordinator resumes.
        layout : Layout, optional
            Layout of the parameters, if the algorithm depends on it.
        samples : float
            Number of samples of the whole run: when they have been accrued, the answer to an `Iteration` is to stop.
        """
        raise NotImplementedError

    def matrices(self) -> tuple[str, ...]:
        """Return the names of the shards' matrices.

        They are of float64, with a row for each parameter of the shard, and a column for each of the model.
        """
        return ()

    def model(self, outputs: int) -> dict[str, Any]:
        """Return the keys of ``[model]`` that the algorithm determines, such as `layer`, for a number of outputs."""
        return {}

    @property
    def least_epochs(self) -> int:
        """Number of epochs in which every part of the model that the algorithm makes can be trained."""
        return 0

    def function(self, task: int) -> Function:
        """Return what replicas compute of a batch for a task: `Gradient.function`."""
        return loss_and_gradient

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the model replica of Dean et al. (2012), algorithm 7.2."""
        accrued = parameters.copy()
        evaluation = None
        while (unit := (yield NextUnit())) is not None:
            if unit.evaluation != evaluation:
                yield Fetch(parameters)
                evaluation, function = unit.evaluation, self.function(unit.task)
            accrued.fill(0)
            for batch in unit.batches:
                gradient = yield Gradient(parameters, batch, function)
                gradient *= state.weight
                accrued += gradient
            yield Accrue(unit, accrued)

    def units(self, portions: int) -> int:
        """Return the largest number of units of an evaluation, given the number of portions of the data."""
        # Each segment may end with a smaller unit.
        return -(-portions // self.unit) + SEGMENTS

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        # Sums are in the order in which units arrive.
        check_timing(self, deterministic, "name")


def matrices(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the names of the matrices of which an algorithm's shards keep rows."""
    return algorithm.matrices() if isinstance(algorithm, Coordinated) else ()
