"""Asynchronous SGD with delay compensation, DC-ASGD (Zheng et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.shards.policies import DelayCompensated, Policy


@dataclass(frozen=True)
class Dcasgd(Algorithm):
    """Servers correct a late gradient by a first-order estimate of its change since it was computed.

    Parameters
    ----------
    variance : float
        Factor of the squared gradient in the estimate of the Hessian's diagonal, lambda. With 0 the algorithm is plain
        asynchronous SGD.
    """

    name: ClassVar[str] = "dcasgd"

    variance: Annotated[float, Meta(ge=0)] = 0.04

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the paper; see `Algorithm.replica`."""
        while True:
            batch = yield NextBatch()
            if batch is None:
                break
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that compensates the delay of each gradient before the rule applies it."""
        return DelayCompensated(self.variance)
