"""What an algorithm may ask of the engine that runs it.

A replica's generator yields these and receives the answer as the value of the `yield`. Vectors are flat arrays as
long as the model's parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Take the next minibatch. Answer: a handle for `Gradient`, or None when there is no more data for this replica."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Compute the gradient of a batch's mean loss at `parameters`.

    Answer: a vector that the replica may change, valid until it is pushed or the next Gradient.
    """

    parameters: Any
    batch: Any


@dataclass(frozen=True, slots=True)
class WaitForEpoch:
    """Wait until the replicas together have taken `epoch` (a float) epochs of data. Answer: None."""

    epoch: float


@dataclass(frozen=True, slots=True)
class Clock:
    """Say that one more step is done, its pushes applied, and wait until no replica is over `bound` steps behind.

    Replicas that have no more data hold nobody up. Answer: None.
    """

    bound: int


# Of algorithms that exchange through servers.


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring the servers' parameters into `parameters`, this replica's own pushes included. Answer: None.

    With `newer`, wait before until every shard has been updated since this replica's last fetch.

    With `ahead`, bring what the previous such request began to fetch and begin the next fetch, which goes on while the
    replica computes: what arrives is then one request old, and need not include the replica's latest pushes.
    """

    parameters: Any
    ahead: bool = False
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Push:
    """Send a vector to the servers. Answer: None, once it is on its way and the vector may be changed again."""

    vector: Any


# Of algorithms that exchange by reduction among the replicas, which hold the shards.


@dataclass(frozen=True, slots=True)
class Reduce:
    """Meet all replicas: their vectors' mean (or sum) becomes one update, whose result is brought into `parameters`.

    Sums are taken in the order of the replicas. Who has nothing to give takes part with None; as long as any replica
    gives something, all must go on to take part. `vector` may be `parameters`. Answer: how many gave something.
    """

    vector: Any | None
    parameters: Any
    mean: bool = True


# Of algorithms whose replicas share one vector of parameters in memory.


@dataclass(frozen=True, slots=True)
class Update:
    """Let the rule change the shared parameters by a gradient, in place and without any lock.

    Elements whose gradient is 0 are not touched. Answer: None.
    """

    gradient: Any


# Of replicas that a coordinator tells what to compute.


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive portions of a batch, which are accrued together.

    Attributes
    ----------
    evaluation : int
        Counts the coordinator's evaluations from 1.
    number : int
        Of the units of this evaluation.
    batches : tuple
        Handles for `Gradient`.
    """

    evaluation: int
    number: int
    batches: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NextUnit:
    """Take the next unit, waiting for one if there is none. Answer: a `Unit`, or None when training is over."""


@dataclass(frozen=True, slots=True)
class Accrue:
    """Have the servers add a vector, the sum of a unit's gradients, unless they have it already.

    Answer: None, once it is on its way and the vector may be changed again.
    """

    unit: Unit
    vector: Any


Request = NextBatch | Gradient | WaitForEpoch | Clock | Fetch | Push | Reduce | Update | NextUnit | Accrue
