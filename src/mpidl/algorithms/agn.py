"""Accumulated gradient normalisation (Hermans 2017; Hermans, Spanakis, Moeckel 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.policies import Add, Policy
from mpidl.rules import Sgd


@dataclass(frozen=True)
class Agn(Algorithm):
    """Replicas make `window` local steps, commit their change divided by the number of steps, and pull.

    The class ADAG of dist-keras is this algorithm; the thesis' own ADAG is `Adag`. With a window of 1 it is Downpour
    with plain SGD.

    Parameters
    ----------
    rate : float
        Learning rate of the replicas, eta.
    window : int
        Local steps between commits, lambda.
    """

    name: ClassVar[str] = "agn"

    rate: Annotated[float, Meta(gt=0)] = 0.3
    window: Annotated[int, Meta(ge=1)] = 4

    def replica(self, number: int, parameters: Any, replicas: int) -> Replica:
        """Return the thesis' worker; see `Algorithm.replica`."""
        local = Sgd(self.rate)
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
            if steps == self.window:
                yield Push(self._commit(change, parameters, steps))
                steps = 0
        if steps:
            yield Push(self._commit(change, parameters, steps))

    def _commit(self, pulled: Any, parameters: Any, steps: int) -> Any:
        """Turn what was pulled into the change to commit."""
        pulled -= parameters
        pulled *= -1 / steps
        return pulled

    def policy(self, replicas: int) -> Policy:
        """Add the changes."""
        return Add()
