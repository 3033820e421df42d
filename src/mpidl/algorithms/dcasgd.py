"""Asynchronous SGD with delay compensation, DC-ASGD (Zheng et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.algorithms.windowed import beside
from mpidl.schema import Fraction, NonNegative
from mpidl.shards.policies import DelayCompensated, Policy


@dataclass(frozen=True)
class Dcasgd(Algorithm):
    """Servers correct a late gradient by a first-order estimate of its change since it was computed.

    Parameters
    ----------
    variance : float, optional
        Factor of the squared gradient in the estimate of the Hessian's diagonal, lambda. With 0 the algorithm is plain
        asynchronous SGD. By default 0.04, and 2 if `adaptive` is set, as in the paper.
    adaptive : bool
        Divide `variance` by the root of a moving mean of the squared gradients, element by element (DC-ASGD-a).
    decay : float
        Fraction of the moving mean that remains at each update, m; used if `adaptive` is set.
    """

    name: ClassVar[str] = "dcasgd"

    variance: NonNegative | None = None
    adaptive: bool = False
    decay: Fraction = 0.95

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the paper."""
        pushed = beside(parameters)
        gradient, origin = pushed
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters)
            origin[:] = parameters
            gradient[:] = yield Gradient(parameters, batch)
            yield Push(pushed)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that compensates the delay of each gradient before the rule applies it."""
        variance = (2.0 if self.adaptive else 0.04) if self.variance is None else self.variance
        return DelayCompensated(variance, self.decay if self.adaptive else None)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(repeatable=True)
