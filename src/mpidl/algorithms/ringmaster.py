"""Ringmaster ASGD: asynchronous SGD whose gradients are never more than a number of updates behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Pattern, Replica, check_timing
from mpidl.algorithms.gradients import EachGradient
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.errors import UsageError
from mpidl.rules import Rule
from mpidl.schema import Count
from mpidl.shards.policies import ApplyAtOnce, DecreasingRate, Policy, drop_above


@dataclass(frozen=True)
class Ringmaster(EachGradient):
    """Gradients that would come too many updates after their parameters are stopped, and computed anew.

    Parameters
    ----------
    max_delay : int, optional
        Least delay, in updates, of the gradients that aren't used, R. By default twice the number of replicas.
    stops : bool
        Whether a replica looks at the shards' clock while it computes, and begins anew with the same batch as soon as
        its gradient is too late. Each batch is then used once. Otherwise the shards drop gradients that are too late.
    adaptive : bool
        Whether R grows as the root of the number of updates k, and rates decrease as (k + 1)^(-3/4), so that neither
        depends on unknown constants; `max_delay` is then ignored. The schedule's momentum is that of the rule ``muon``
        with ``momentum = "increasing"``.

    Notes
    -----
    The delay is that at the time when a gradient has been computed; others may be applied while it travels.

    References
    ----------
    A. Maranjyan, A. Tyurin, P. Richtarik (2025), Ringmaster ASGD, algorithms 4 and 5. The parameter-free schedule is
    that of its extension to linear minimisation oracles.
    """

    name: ClassVar[str] = "ringmaster"
    max_delay: Count | None = None
    stops: bool = True
    adaptive: bool = False

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker, which begins anew where its gradient would be too late."""
        late_by = partial(self.least_delay, replicas) if self.stops else None
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch, late_by=late_by)
            if gradient is not None:
                yield Push(gradient)

    def least_delay(self, replicas: int, clock: int = 0) -> int:
        """Return the least delay at which a gradient is too late, given the clock when its parameters were fetched."""
        if not self.adaptive:
            return self.max_delay or 2 * replicas
        delay = max(1, isqrt(clock))
        while delay < isqrt(clock + delay):
            delay += 1
        return delay

    def policy(self, replicas: int) -> Policy:
        """Return the policy that applies each gradient, or drops it if it is too late and hasn't been stopped."""
        if self.adaptive:
            return DecreasingRate(0.75)
        return ApplyAtOnce() if self.stops else drop_above(self.least_delay(replicas) - 1, ApplyAtOnce())

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(pushes_gradients=False, gives_up=self.stops)

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing(self, deterministic, "stops")
        if self.adaptive and not self.stops:
            raise UsageError("algorithm.adaptive: true, but stops is false, expected true")
