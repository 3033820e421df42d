"""Stale synchronous parallel, SSP (Ho et al. 2013)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Clock, Fetch, Gradient, NextBatch, Push
from mpidl.schema import Natural


@dataclass(frozen=True)
class Ssp(Algorithm):
    """Downpour in which the fastest replica is never more than `bound` steps ahead of the slowest.

    Parameters
    ----------
    bound : int
        Largest number of steps between the fastest and the slowest replica, s. With 0 all replicas step together.
    """

    name: ClassVar[str] = "ssp"
    pushes_gradients: ClassVar[bool] = True

    bound: Natural = 3

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker, which at clock c reads all updates up to c - s - 1."""
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)
            yield Clock(self.bound)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(even=True)
