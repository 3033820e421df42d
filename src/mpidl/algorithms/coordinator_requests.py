"""The requests of a coordinator's generator, and their answers (Dean et al. 2012, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from mpidl.shards.operations import Operation

#: Largest number of segments in an evaluation.
SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class Operate:
    """Let all servers carry out operations. Answer: a list of floats, the results of all `Dot` among them in order."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a batch whose gradient is accrued in a vector of its own.

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
    """

    segments: tuple[Segment, ...]


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
        Number of units handed out a second time, and of those whose second copy arrived first.
    waiting : float
        Seconds from the moment at which the last unit was first handed out to the end of the evaluation.
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
    samples : int
        Number of samples whose gradients have been accrued since the coordinator began.
    portions, backups, won, waiting
        Sums over the evaluations since the previous iteration; see `Evaluation`.
    state : dict
        Scalars from which a coordinator resumes.
    operating : float
        Seconds since the previous iteration in which replicas could only wait for operations; set by the engine.
    messages : int
        Number of messages between coordinator and servers since the previous iteration; set by the engine.
    """

    number: int
    objective: float
    gradient_norm: float
    step: float
    evaluations: int
    samples: int
    portions: int
    backups: int
    won: int
    waiting: float
    state: dict[str, object]
    operating: float = 0.0
    messages: int = 0


CoordinatorRequest = Operate | Evaluate | Iteration
