"""What the algorithms have in common whose replicas make a window of local steps between exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from typing import Any, Literal

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Request
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


def inner_steps(parameters: Any, name: str, rate: float) -> Callable[[Any], None]:
    """Return what makes a replica's own steps: a function of a gradient, by the rule of this name and rate.

    Parameters
    ----------
    parameters : array, shape (size,)
        Changed at each step.
    name : str
        In `mpidl.rules.RULES`.
    rate : float
    """
    rule = RULES[name](rate=rate)  # type: ignore[call-arg]
    state = rule.init(parameters)
    steps = count(1)
    return lambda gradient: rule.update(parameters, state, gradient, next(steps))


def commit_windows(
    parameters: Any, rate: float, window: int, weight: Callable[[int], float] = lambda steps: 1.0
) -> Replica:
    """Pull, make `window` steps of plain SGD, commit weight(steps) times the change, and again.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    rate : float
        Learning rate, eta.
    window : int
        Steps between commits, lambda; the last commit of a run may have fewer.
    weight : callable
        Of the number of steps, what the change is multiplied by.
    """
    local = Sgd(rate)
    change = parameters.copy()
    steps = 0
    for step in count(1):
        batch = yield NextBatch()
        if batch is None:
            break
        if steps == 0:
            yield Fetch(parameters)
            change[:] = parameters
        gradient = yield Gradient(parameters, batch)
        local.update(parameters, (), gradient, step)
        steps += 1
        if steps == window:
            change -= parameters
            change *= -weight(steps)
            yield Push(change)
            steps = 0
    if steps:
        change -= parameters
        change *= -weight(steps)
        yield Push(change)
