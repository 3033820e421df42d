"""Synchronous SGD with backup workers (Chen, Pan, Monga, Bengio, Jozefowicz 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.rules import Rule
from mpidl.shards.policies import FirstOfStep, Policy


@dataclass(frozen=True)
class BackupSync(Algorithm):
    """N + b replicas compute each step, which uses the first N gradients that arrive and drops the others.

    Parameters
    ----------
    backup : int
        Number of backup workers, b. At least one gradient is used in each step.
    grace : float
        Seconds during which more gradients may join the first N after these have arrived.
    """

    name: ClassVar[str] = "backup_sync"

    backup: Annotated[int, Meta(ge=0)] = 1
    grace: Annotated[float, Meta(ge=0)] = 0.0

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker in algorithm 3 of the paper."""
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters, newer=True)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)

    def pattern(self, replicas: int) -> Pattern:
        return Pattern(pushes_gradients=not self.shard_policy(replicas).by_arrival)

    def policy(self, replicas: int) -> Policy:
        """Return the parameter server in algorithm 4 of the paper."""
        return FirstOfStep(max(1, replicas - self.backup), replicas, self.grace)

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing("grace", self.grace, deterministic)
