"""Rescaled asynchronous SGD (Mahran, Maranjyan, Richtarik 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpidl.algorithms.algorithm import Pattern
from mpidl.algorithms.downpour import Downpour
from mpidl.shards.policies import Policy, RescaledRate


@dataclass(frozen=True)
class Rescaled(Downpour):
    """Downpour with gradients weighted by their replica's computing time, so that all replicas count the same.

    Notes
    -----
    The weight of a push is tau / mean(tau), where tau is the time of the replica between two pushes, and the mean is
    over the replicas. It is a factor of the rate of all steps that the push makes: a velocity and a first moment
    contain weighted gradients, means of squares unweighted ones. Where each replica has data of its own, training
    converges with every rule to the optimum of the mean of their objectives, up to the size of a step. If all replicas
    are equally fast it is `Downpour`, bit for bit.
    """

    name: ClassVar[str] = "rescaled"

    def policy(self, replicas: int) -> Policy:
        """Return the policy that weights each push by its replica's time."""
        return RescaledRate(replicas)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(even=True)
