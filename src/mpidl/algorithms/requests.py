"""The requests that a replica's generator makes of the engine that runs it, and the loops that answer them.

The generator yields a request, and the value of the `yield` is the answer. Vectors are flat arrays with as many
elements as the model has parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from mpidl.parameters.ranges import Range

#: A function of a model and of a batch.
Function = Callable[[Any, Any], tuple[float, Any]]


def loss_and_gradient(model: Any, batch: Any) -> tuple[float, Any]:
    """Return a model's mean loss over a batch and its gradient, shape (size,)."""
    found: tuple[float, Any] = model.loss_and_gradient(batch)
    return found


class NextBatch(Struct, frozen=True):
    """Take the next minibatch, or the last one again if its gradient was given up.

    Answer: a handle for `Gradient`, or None when no data are left.
    """


#: When a gradient is given up.
LateBy = Callable[[int], int] | None


class Gradient(Struct, frozen=True):
    """Compute the gradient of a batch's mean loss at `parameters`, or another function of these.

    Answer: a vector that the replica may change, or None if it was given up. It is valid until it is pushed, or until
    the next `Gradient`.

    Attributes
    ----------
    parameters : array, shape (size,)
    batch
        The handle of a batch.
    function : callable
        Takes the model, which has these parameters, and a `mpidl.data.Batch`; returns a loss and the vector.
    late_by : callable, optional
        Takes a shard's clock at this replica's last fetch, and returns a number of updates. When every shard has been
        updated as often since then, the gradient is given up: nothing waits for it any more. None: never.
    """

    parameters: Any
    batch: Any
    function: Function = loss_and_gradient
    late_by: LateBy = None


class WaitForEpoch(Struct, frozen=True):
    """Wait until all replicas together have taken `epoch` epochs of data, a float. Answer: None."""

    epoch: float


class Clock(Struct, frozen=True):
    """Count one more step when its pushes are applied, and wait until no replica is more than `bound` steps behind.

    Replicas without data don't count. Answer: None.
    """

    bound: int


# Requests of algorithms that exchange through servers.


class Fetch(Struct, frozen=True):
    """Copy the servers' parameters, with all of this replica's own pushes, into `parameters`. Answer: None.

    With `newer`, first wait until every shard has been updated since this replica's last fetch. If there are `parts` of
    the vector, copy only the shards in these.

    If the algorithm's `Pattern` prefetches, copy the parameters whose fetch the previous request started, and start the
    next fetch, which proceeds while the replica computes. The parameters are then one request old, and may lack the
    replica's latest pushes.
    """

    parameters: Any
    newer: bool = False
    parts: Sequence[Range] = ()


class Push(Struct, frozen=True):
    """Send a vector to the servers. Answer: None, once the vector is under way and may be changed again.

    The vector has shape (size,). If the servers' policy compares, it has shape (2, size), and its second row is the
    parameters that the first was computed at. If there are `parts` of it, it changes only shards in these; to others it
    is no update.
    """

    vector: Any
    parts: Sequence[Range] = ()


# Requests of algorithms that exchange by reduction, where the replicas have the shards.


class Reduce(Struct, frozen=True):
    """Update the shards by the mean or the sum of all replicas' vectors, and copy the result to `parameters`.

    In a mean, each vector has a `weight`. Vectors are added in the order of the replicas. A replica without a vector
    takes part with None. All replicas must take part as long as any of them has a vector. `vector` may be
    `parameters`. Answer: the number of vectors.
    """

    vector: Any | None
    parameters: Any
    mean: bool = True
    weight: float = 1.0


class Speed(Struct, frozen=True):
    """Measure this replica's speed. Answer: its steps per second over those of the fastest replica, at most 1.

    Both are measured between the last two reductions; before the first, the answer is 1.
    """


class StartReduction(Struct, frozen=True):
    """Start a reduction of a part of all replicas' vectors, while they compute: the mean is one update of that part.

    The part of `vector` must not change until the reduction is finished. Each vector has a `weight` in the mean; one of
    weight 0 is left out. All replicas start the same reductions in the same order. Answer: None.
    """

    vector: Any
    part: Range
    weight: float = 1.0


class FinishReduction(Struct, frozen=True):
    """Wait for the first unfinished reduction, and copy its result to that part of `vector`.

    If all weights were 0, `vector` isn't changed. The replica's last `rest` batches are not in the results of all parts
    of its vector yet. Answer: the number of vectors with a weight.
    """

    vector: Any
    rest: int = 0


# Requests of algorithms whose replicas share one vector of parameters in memory.


class UpdateShared(Struct, frozen=True):
    """Update the shared parameters by the rule, in place, without locks, where the gradient isn't 0. Answer: None."""

    gradient: Any


# Requests of replicas that compute for a coordinator.


class Unit(Struct, frozen=True):
    """Consecutive portions of a batch whose gradients are accrued together.

    Attributes
    ----------
    evaluation : int
        The coordinator's evaluation, from 1.
    number : int
        The unit in this evaluation, from 0.
    batches : tuple
        Handles for `Gradient`.
    task : int
        What the replica computes of them, in an algorithm with several tasks: that of `Evaluate`.
    """

    evaluation: int
    number: int
    batches: tuple[Any, ...]
    task: int = 0


class NextUnit(Struct, frozen=True):
    """Take the next unit, and wait for one if there is none. Answer: a `Unit`, or None when training is over."""


class Accrue(Struct, frozen=True):
    """Send the weighted sum of a unit's gradients to the servers, which add each unit only once.

    Answer: None, once the vector is under way and may be changed again.
    """

    unit: Unit
    vector: Any


Request = (
    NextBatch | Gradient | WaitForEpoch | Clock | Fetch | Push | Reduce | Speed | StartReduction | FinishReduction
    | UpdateShared | NextUnit | Accrue
)  # fmt: skip


Wait = TypeVar("Wait")
Result = TypeVar("Result")


def drive(
    requests: Generator[Any, Any, Result], actions: Mapping[type, Callable[[Any], Generator[Wait, Any, Any]]]
) -> Generator[Wait, Any, Result]:
    """Answer each request of a generator by the action for its type; return the generator's result.

    An action takes the request and returns a generator, which returns the answer. Everything that it yields passes
    through: an engine that is a generator uses ``yield from drive(...)``, and its actions yield the events that they
    wait for. Raise KeyError if there is no action for a request.
    """
    answer: Any = None
    while True:
        try:
            request = requests.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = yield from actions[type(request)](request)


def pushes(
    replica: Generator[Request, Any, None],
    next_batch: Callable[[], Any],
    fetch: Callable[[Any], None],
    gradient: Callable[[Gradient], Any],
) -> Iterator[Any]:
    """Yield the vectors that a replica pushes, each valid until the next, as another replica would make them.

    All requests are answered in place; it waits for no others.

    Parameters
    ----------
    replica : generator
        The requests of an algorithm that exchanges through servers.
    next_batch, fetch, gradient : callable
        Answer `NextBatch`, `Fetch`, given its parameters, and `Gradient`.
    """
    answer = None
    while True:
        try:
            request = replica.send(answer)
        except StopIteration:
            return
        answer = None
        match request:
            case NextBatch():
                answer = next_batch()
            case Gradient():
                answer = gradient(request)
            case Fetch(parameters):
                fetch(parameters)
            case Push(vector):
                yield vector
