"""Downpour SGD (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012), and with rescaled gradients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, WaitForEpoch
from mpidl.rules import Rule, Sgd
from mpidl.schema import Count, NonNegative, Positive
from mpidl.shards.policies import ApplyAtOnce, Policy, RescaledRate


@dataclass(frozen=True)
class Downpour(Algorithm):
    """Replicas push gradients to the shards and fetch parameters from them, each at its own pace.

    Parameters
    ----------
    n_fetch : int
        Number of steps between fetches.
    n_push : int
        Number of steps between pushes; a push is the sum of the gradients since the previous one. Statistics, such
        as running means, are moved by the mean of the steps since the previous fetch.
    schedule : {"aligned", "literal"}
        "aligned" pushes after steps n_push, 2 n_push, ..., so that a fetch never overtakes the push before it.
        "literal" is the paper's pseudocode: it pushes after steps 1, n_push + 1, ..., and with n_fetch = n_push > 1
        each fetch overwrites local progress that hasn't been pushed yet.
    rate : float, optional
        Learning rate of local steps between fetches, by plain SGD regardless of the shards' rule. By default a replica
        makes no local steps.
    warm_start : float
        Number of epochs that the first replica trains alone before the others join.
    overlap : bool
        Whether to fetch in the background, one request ahead. This hides the network and adds n_fetch steps of
        staleness.
    """

    name: ClassVar[str] = "downpour"

    n_fetch: Count = 1
    n_push: Count = 1
    schedule: Literal["aligned", "literal"] = "aligned"
    rate: Positive | None = None
    warm_start: NonNegative = 0.0
    overlap: bool = False

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the client in algorithm 7.1 of the paper's appendix."""
        if number > 0 and self.warm_start > 0:
            yield WaitForEpoch(self.warm_start)
        counts = state.counts
        local = state.step_by(Sgd(self.rate), parameters) if self.rate is not None else None
        accrued = state.keep("accrued", parameters.copy()) if self.n_push > 1 else None
        if self.n_fetch > 1:
            state.keep("parameters", parameters)
        while (batch := (yield NextBatch())) is not None:
            step = counts["batches"]
            if step % self.n_fetch == 0:
                yield Fetch(parameters)
                if accrued is not None:
                    # Pushed changes of statistics must not be staler than the push.
                    state.scale_statistics(accrued, 0.0)
            gradient = yield Gradient(parameters, batch)
            counts["batches"] += 1
            # A local step before a fetch would be overwritten by it.
            if local is not None and (step + 1) % self.n_fetch:
                local(gradient)
            if accrued is None:
                yield Push(gradient)
                continue
            if counts["unpushed"]:
                accrued += gradient
            else:
                accrued[:] = gradient
            counts["unpushed"] += 1
            if self._pushes_after(step):
                state.scale_statistics(accrued, 1 / self._summed(counts))
                yield Push(accrued)
                counts["unpushed"] = 0
        if counts["unpushed"]:
            state.scale_statistics(accrued, 1 / self._summed(counts))
            yield Push(accrued)
            counts["unpushed"] = 0

    def _summed(self, counts: Counter[str]) -> int:
        """Return the number of steps whose changes of statistics have been accrued."""
        return min(counts["unpushed"], (counts["batches"] - 1) % self.n_fetch + 1)

    def pattern(self, replicas: int) -> Pattern:
        policy, fetches_next = self.shard_policy(replicas), self.n_fetch == 1
        return Pattern(
            prefetches=self.overlap,
            fetches_next=fetches_next and isinstance(policy, ApplyAtOnce) and self.max_staleness is None,
            # With `overlap`, the replica doesn't wait for its pushes, so that starting them sooner gains nothing.
            pushes_gradients=fetches_next and self.n_push == 1 and not self.overlap and not policy.by_arrival,
            only_reads=fetches_next and not self.overlap and self.wire_fetch == "fp32",
            repeatable=True,
        )

    def _pushes_after(self, step: int) -> bool:
        return (step if self.schedule == "literal" else step + 1) % self.n_push == 0

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing(self, deterministic, "overlap", "warm_start")


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
