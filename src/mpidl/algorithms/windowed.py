"""What the algorithms have in common whose replicas make a window of local steps between exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Request
from mpidl.algorithms.steps import Step, Steps
from mpidl.rules import RULES, Sgd

#: Names of the rules that replicas can make their own steps by.
Inner = Literal["adagrad", "adam", "adamw", "momentum", "nesterov", "rmsprop", "sgd"]


def local_steps(parameters: Any, window: int, step: Callable[[Any], None]) -> Generator[Request, Any, int]:
    """Make at most `window` steps, as many as there are batches, and return how many.

    Parameters
    ----------
    parameters : array, shape (size,)
        Where gradients are computed.
    window : int
    step : callable
        Changes the parameters by a gradient.
    """
    for done in range(window):
        batch = yield NextBatch()
        if batch is None:
            return done
        step((yield Gradient(parameters, batch)))
    return window


def inner_steps(parameters: Any, name: str, rate: float, steps: Steps) -> Step:
    """Return what makes a replica's own steps: a function of a gradient, by the rule of this name and rate.

    Parameters
    ----------
    parameters : array, shape (size,)
        Changed at each step.
    name : str
        In `mpidl.rules.RULES`.
    rate : float
    steps : Steps
        The replica's.
    """
    return steps.by(RULES[name](rate=rate), parameters)  # type: ignore[call-arg]


def commit_windows(
    parameters: Any, rate: float, window: int, steps: Steps, weight: Callable[[int], float] = lambda done: 1.0
) -> Replica:
    """Pull, make `window` steps of plain SGD, commit weight(how many) times the change, and again.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    rate : float
        Learning rate, eta.
    window : int
        Steps between commits, lambda; the last commit of a run may have fewer.
    steps : Steps
        The replica's.
    weight : callable
        Of the number of steps, what the change is multiplied by.
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
