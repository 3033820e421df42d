"""Parts of algorithms whose replicas make several local steps between two exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal

import numpy as np

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState, Step
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Request, Speed
from mpidl.rules import RULES, Sgd

#: Names of the rules that local steps can use.
Inner = Literal["adagrad", "adam", "adamw", "momentum", "nesterov", "rmsprop", "sgd"]


def local_steps(
    parameters: Any, window: int, step: Callable[[Any], None], state: ReplicaState
) -> Generator[Request, Any, int]:
    """Make `window` steps, or fewer if the data run out, and return their number.

    A resumed replica makes the remaining ones; ``counts["done"]`` is the number of those made, 0 between two windows.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own; gradients are computed at them.
    window : int
        Largest number of steps.
    step : callable
        Takes a gradient, shape (size,), and changes the parameters by it.
    """
    counts = state.counts
    while counts["done"] < window and (batch := (yield NextBatch())) is not None:
        step((yield Gradient(parameters, batch)))
        counts["done"] += 1
    return counts.pop("done", 0)


def local_window(window: int, dynamic: bool, state: ReplicaState) -> Generator[Request, Any, int]:
    """Return this replica's number of steps in the current round: `window`, or fewer if it is slower.

    Parameters
    ----------
    window : int
        Number of steps of the fastest replica.
    dynamic : bool
        Whether a slower one makes fewer, in proportion to its speed, so that all end together.
    state : ReplicaState
        Has the number as ``counts["window"]`` until the next round.

    References
    ----------
    B. Liu et al. (2024), Asynchronous local-SGD training for language modeling, section 4.2: dynamic local updates.
    """
    if not dynamic:
        return window
    if not state.counts["done"]:
        state.counts["window"] = max(1, int(window * (yield Speed())))
    return state.counts["window"]


def inner_steps(parameters: Any, name: str, rate: float, state: ReplicaState) -> Step:
    """Return a function of a gradient that makes a replica's local steps by the rule `name` in `mpidl.rules.RULES`."""
    state.keep("parameters", parameters)
    return state.step_by(RULES[name](rate=rate), parameters)  # type: ignore[call-arg]


def falling_rate(replicas: int) -> float:
    """Return the default rate of replicas that commit the mean of a window's steps: 0.5, or 0.8 / replicas if lower.

    The staleness of a commit grows with the number of replicas, and the highest rate that trains falls with it.
    """
    return min(0.5, 0.8 / replicas)


def commit_windows(
    parameters: Any, rate: float, window: int, state: ReplicaState, factor: float = 1.0, with_origin: bool = False
) -> Replica:
    """Fetch, make `window` steps of plain SGD, push their change times `factor`, and repeat until the data run out.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    rate : float
        Learning rate, eta.
    window : int
        Number of steps between pushes, lambda; the last push of a run may have fewer.
    with_origin : bool
        Whether each `Push` includes the fetched parameters.
    """
    counts, local = state.counts, state.step_by(Sgd(rate), parameters)
    pushed = beside(parameters) if with_origin else parameters.copy()
    change, start = pushed if with_origin else (pushed, pushed)
    if window > 1:
        state.keep("parameters", parameters)
        state.keep("start", start)

    def commit() -> Push:
        np.subtract(parameters, start, out=change)
        np.multiply(change, factor, out=change)
        if factor == 1.0:
            # Others commit theirs before this replica sees them: the sum of whole changes would overshoot.
            state.scale_statistics(change, 1 / counts["done"])
        counts.pop("done")
        return Push(pushed)

    while (batch := (yield NextBatch())) is not None:
        if counts["done"] == 0:
            yield Fetch(parameters)
            start[:] = parameters
        local((yield Gradient(parameters, batch)))
        counts["done"] += 1
        if counts["done"] == window:
            yield commit()
    if counts["done"]:
        yield commit()


def beside(parameters: Any) -> Any:
    """Return an array of two rows like `parameters`, for a `Push` that includes the fetched parameters."""
    return np.empty_like(parameters, shape=(2, parameters.size))
