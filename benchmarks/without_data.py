"""Shared by the contrasts that need no data: a virtual cluster around a function that returns a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from mpidl.algorithms import Algorithm
from mpidl.algorithms.requests import Push
from mpidl.data import Batch, Portions
from mpidl.data.dataset import ArraySplit
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Hooks, Times, Training, VirtualEngine, VirtualTime
from mpidl.nn.model import PlacedModel
from mpidl.parameters import Range
from mpidl.rules import Rule
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard


class Objective(PlacedModel):
    """A model whose gradient depends on the parameters only."""

    def __init__(self, start: np.ndarray, gradient: Callable[[np.ndarray], np.ndarray]) -> None:
        self.parameters, self._gradient = start.copy(), gradient

    def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
        """Return no loss, and the gradient at the parameters."""
        return 0.0, self._gradient(self.parameters)


def with_own_gradients(base: type[Algorithm], gradient: Callable[[int, np.ndarray], np.ndarray]) -> type[Algorithm]:
    """Return an algorithm each of whose replicas pushes a function of its number and its parameters."""

    class WithOwnGradients(base):  # type: ignore[valid-type, misc]
        def replica(self, number: int, parameters: np.ndarray, *others: Any) -> Iterator[Any]:
            requests, answer = super().replica(number, parameters, *others), None
            with suppress(StopIteration):
                while True:
                    if isinstance(request := requests.send(answer), Push):
                        request.vector[:] = gradient(number, parameters)
                    answer = yield request

    return WithOwnGradients


def engine(
    algorithm: Algorithm, model: Objective, replicas: int, steps: int, times: Times, rule: Rule, seed: int, **hooks: Any
) -> VirtualEngine:
    """Return a cluster with one server, whose replicas make a number of steps in all."""
    nothing = np.zeros((steps, 1), np.float32)
    training = Training(
        algorithm, model, ArraySplit(nothing, nothing), Schedule(Portions(steps, 1, 1, seed=0), steps=steps)
    )
    size = model.parameters.size
    shard = Shard(Range(0, size), model.parameters.copy(), ScheduledRule(rule), algorithm.shard_policy(replicas), size)
    return VirtualEngine(training, [shard], replicas, time=VirtualTime(times, seed), hooks=Hooks(**hooks))
