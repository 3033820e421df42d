"""The parts of algorithms whose replicas make several local steps between two exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Request
from mpidl.algorithms.steps import Step, Steps
from mpidl.rules import RULES, Sgd

#: Names of the rules that local steps can use.
Inner = Literal["adagrad", "adam", "adamw", "momentum", "nesterov", "rmsprop", "sgd"]


def local_steps(parameters: Any, window: int, step: Callable[[Any], None]) -> Generator[Request, Any, int]:
    """Make `window` steps, or fewer if the data run out, and return their number.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own; gradients are computed at them.
    window : int
        Largest number of steps.
    step : callable
        Takes a gradient, shape (size,), and changes the parameters by it.
    """
    for done in range(window):
        batch = yield NextBatch()
        if batch is None:
            return done
        step((yield Gradient(parameters, batch)))
    return window


def inner_steps(parameters: Any, name: str, rate: float, steps: Steps) -> Step:
    """Return a function of a gradient that makes a replica's local steps.

    Parameters
    ----------
    parameters : array, shape (size,)
        Changed by each step.
    name : str
        Name of the rule in `mpidl.rules.RULES`.
    rate : float
        Learning rate of the rule.
    steps : Steps
        Makes the replica's own steps.
    """
    return steps.by(RULES[name](rate=rate), parameters)  # type: ignore[call-arg]


def commit_windows(
    parameters: Any, rate: float, window: int, steps: Steps, weight: Callable[[int], float] = lambda done: 1.0
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
    steps : Steps
        Makes the replica's own steps.
    weight : callable
        Takes the number of steps and returns the factor of their change.
    """
    local = steps.by(Sgd(rate), parameters)
    change = parameters.copy()
    done = 0
    while True:
        batch = yield NextBatch()
        if batch is None:
            break
        if done == 0:
            yield Fetch(parameters)
            change[:] = parameters
        local((yield Gradient(parameters, batch)))
        done += 1
        if done == window:
            change -= parameters
            change *= -weight(done)
            yield Push(change)
            done = 0
    if done:
        change -= parameters
        change *= -weight(done)
        yield Push(change)
