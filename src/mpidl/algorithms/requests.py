"""The requests that a replica's generator makes of the engine that runs it.

The generator yields a request, and the value of the `yield` is the answer. Vectors are flat arrays with as many
elements as the model has parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpidl.parameters.ranges import Range


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Take the next minibatch. Answer: a handle for `Gradient`, or None when no data are left for this replica."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Compute the gradient of a batch's mean loss at `parameters`.

    Answer: a vector that the replica may change. It is valid until it is pushed, or until the next `Gradient`.
    """

    parameters: Any
    batch: Any


@dataclass(frozen=True, slots=True)
class WaitForEpoch:
    """Wait until all replicas together have taken `epoch` epochs of data, a float. Answer: None."""

    epoch: float


@dataclass(frozen=True, slots=True)
class Clock:
    """Count one more step when its pushes are applied, and wait until no replica is more than `bound` steps behind.

    Nobody waits for replicas that have no data left. Answer: None.
    """

    bound: int


# Requests of algorithms that exchange through servers.


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copy the servers' parameters, with all of this replica's own pushes, into `parameters`. Answer: None.

    With `newer`, first wait until every shard has been updated since this replica's last fetch.

    Where the algorithm's `Pattern` prefetches, copy what the previous request began to fetch and begin the next fetch,
    which goes on while the replica computes. The parameters are then one request old, and may lack the replica's latest
    pushes.
    """

    parameters: Any
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Push:
    """Send a vector to the servers. Answer: None, once the vector is on its way and may be changed again.

    The vector has shape (size,). If the servers' policy compares, it has shape (2, size), and its second row is the
    parameters that the first was computed at.
    """

    vector: Any


# Requests of algorithms that exchange by reduction. The replicas themselves have the shards.


@dataclass(frozen=True, slots=True)
class Reduce:
    """Meet all replicas: the mean or the sum of their vectors is one update, whose result is copied to `parameters`.

    In a mean, each vector counts `weight`. Vectors are added in the order of the replicas. A replica without a vector
    takes part with None. All replicas must take part as long as any of them has a vector. `vector` may be
    `parameters`. Answer: the number of vectors.
    """

    vector: Any | None
    parameters: Any
    mean: bool = True
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Speed:
    """Say how fast this replica is. Answer: its steps per second over those of the fastest replica, at most 1.

    Both were measured before the last reduction, since the one before; before the first, the answer is 1.
    """


@dataclass(frozen=True, slots=True)
class StartReduction:
    """Begin to reduce a part of all replicas' vectors, while they compute: the mean is one update of that part.

    The part of `vector` stays as it is until it is finished. Each vector counts `weight` in the mean; one of weight 0
    doesn't count. All replicas start the same reductions in the same order. Answer: None.
    """

    vector: Any
    part: Range
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class FinishReduction:
    """Wait for the first reduction that is started and not finished, and copy its result to that part of `vector`.

    If no vector counted, `vector` stays as it is. The replica's last `rest` batches are not in the results of all parts
    of its vector yet. Answer: the number of vectors that counted.
    """

    vector: Any
    rest: int = 0


# Requests of algorithms whose replicas share one vector of parameters in memory.


@dataclass(frozen=True, slots=True)
class Update:
    """Update the shared parameters by the rule, in place and without any lock.

    Elements whose gradient is 0 stay as they are. Answer: None.
    """

    gradient: Any


# Requests of replicas that compute for a coordinator.


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive portions of a batch whose gradients are accrued together.

    Attributes
    ----------
    evaluation : int
        The coordinator's evaluation, from 1.
    number : int
        The unit in this evaluation, from 0.
    batches : tuple
        Handles for `Gradient`.
    """

    evaluation: int
    number: int
    batches: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NextUnit:
    """Take the next unit, and wait for one if there is none. Answer: a `Unit`, or None when training is over."""


@dataclass(frozen=True, slots=True)
class Accrue:
    """Let the servers add the weighted sum of a unit's gradients, unless they have already added this unit.

    Answer: None, once the vector is on its way and may be changed again.
    """

    unit: Unit
    vector: Any


Request = (
    NextBatch | Gradient | WaitForEpoch | Clock | Fetch | Push | Reduce | Speed | StartReduction | FinishReduction
    | Update | NextUnit | Accrue
)  # fmt: skip
