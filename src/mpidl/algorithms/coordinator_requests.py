"""What a coordinator's generator yields, and what the engine answers (Dean et al. 2012, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from mpidl.shards.operations import Operation

#: Most segments of an evaluation.
SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class Operate:
    """Let all servers carry out operations. Answer: the results of all `Dot` among them, one after the other."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a batch, whose gradient is accrued in a vector of its own.

    Attributes
    ----------
    vector : str
        Where the sum of the samples' gradients is added.
    first, count : int
        Portions [first, first + count) of the data, which begin anew after the last.
    """

    vector: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Let the replicas compute loss and gradient of a batch at the shards' `parameters`.

    The vectors of the segments are 0 before. Answer: an `Evaluation`.
    """

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What became of a batch.

    Attributes
    ----------
    losses : tuple of float
        Of each segment, the sum of the samples' losses.
    samples : tuple of int
        Of each segment.
    portions, backups, won : int
        Portions accrued; those handed out a second time, and those whose second copy came first.
    waiting : float
        Seconds from the last portion's being handed out for the first time to the end.
    """

    losses: tuple[float, ...]
    samples: tuple[int, ...]
    portions: int
    backups: int
    won: int
    waiting: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """Report an iteration; the engine saves a checkpoint if it is time to. Answer: whether to stop.

    Attributes
    ----------
    number : int
        From 1.
    objective : float
    gradient_norm : float
        Euclidean.
    step : float
        Length of the accepted step, in units of the direction.
    evaluations : int
        Of the objective, since the last iteration.
    samples : int
        Whose gradients have been accrued since the coordinator began.
    portions, backups, won, waiting
        Sums over the evaluations; see `Evaluation`.
    state : dict
        Scalars that a resumed coordinator goes on from.
    operating : float
        Seconds in which replicas had nothing to do but wait for operations, since the last iteration; known to engines.
    messages : int
        Between coordinator and servers, since the last iteration; known to engines.
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
