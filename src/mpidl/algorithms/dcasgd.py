"""Asynchronous SGD with delay compensation (Zheng et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.algorithms.steps import Steps
from mpidl.shards.policies import DelayCompensated, Policy


@dataclass(frozen=True)
class Dcasgd(Algorithm):
    """Servers correct a late gradient by a first-order estimate of how it has changed since it was computed.

    Parameters
    ----------
    variance : float
        The paper's lambda: how much of g g is taken for the Hessian; 0 is plain asynchronous SGD.
    """

    name: ClassVar[str] = "dcasgd"

    variance: Annotated[float, Meta(ge=0)] = 0.04

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return the paper's worker; see `Algorithm.replica`."""
        while True:
            batch = yield NextBatch()
            if batch is None:
                break
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)

    def policy(self, replicas: int) -> Policy:
        """Compensate each gradient's delay, then give it to the rule."""
        return DelayCompensated(self.variance)
