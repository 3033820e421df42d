"""The parts of algorithms whose replicas make several local steps between two exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState, Step
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Request
from mpidl.rules import RULES, Sgd

#: Names of the rules that local steps can use.
Inner = Literal["adagrad", "adam", "adamw", "momentum", "nesterov", "rmsprop", "sgd"]


def local_steps(
    parameters: Any, window: int, step: Callable[[Any], None], state: ReplicaState
) -> Generator[Request, Any, int]:
    """Make `window` steps, or fewer if the data run out, and return their number.

    A resumed replica makes those that are left; ``counts["done"]`` is the number of those made, 0 between two windows.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own; gradients are computed at them.
    window : int
        Largest number of steps.
    step : callable
        Takes a gradient, shape (size,), and changes the parameters by it.
    state : ReplicaState
        What the replica keeps.
    """
    counts = state.counts
    while counts["done"] < window and (batch := (yield NextBatch())) is not None:
        step((yield Gradient(parameters, batch)))
        counts["done"] += 1
    return counts.pop("done", 0)


def inner_steps(parameters: Any, name: str, rate: float, state: ReplicaState) -> Step:
    """Return a function of a gradient that makes a replica's local steps; the parameters are kept.

    Parameters
    ----------
    parameters : array, shape (size,)
        Changed by each step.
    name : str
        Name of the rule in `mpidl.rules.RULES`.
    rate : float
        Learning rate of the rule.
    state : ReplicaState
        What the replica keeps.
    """
    state.keep("parameters", parameters)
    return state.step_by(RULES[name](rate=rate), parameters)  # type: ignore[call-arg]


def commit_windows(
    parameters: Any, rate: float, window: int, state: ReplicaState, weight: Callable[[int], float] = lambda done: 1.0
) -> Replica:
    """Fetch, make `window` steps of plain SGD, push their weighted change, and repeat until the data run out.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    rate : float
        Learning rate, eta.
    window : int
        Number of steps between pushes, lambda; the last push of a run may have fewer.
    state : ReplicaState
        What the replica keeps.
    weight : callable
        Takes the number of steps and returns the factor of their change.
    """
    counts, local = state.counts, state.step_by(Sgd(rate), parameters)
    change = parameters.copy()
    if window > 1:
        state.keep("parameters", parameters)
        state.keep("start", change)
    while (batch := (yield NextBatch())) is not None:
        if counts["done"] == 0:
            yield Fetch(parameters)
            change[:] = parameters
        local((yield Gradient(parameters, batch)))
        counts["done"] += 1
        if counts["done"] == window:
            yield _commit(change, parameters, weight(counts.pop("done")))
    if counts["done"]:
        yield _commit(change, parameters, weight(counts.pop("done")))


def _commit(start: Any, parameters: Any, factor: float) -> Push:
    """Return the push of the weighted change since `start`, which it replaces."""
    start -= parameters
    start *= -factor
    return Push(start)
