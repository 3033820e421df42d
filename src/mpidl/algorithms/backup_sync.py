"""Synchronous SGD with backup workers (Chen et al. 2016), which may be restarted (K-sync SGD, Dutta et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.rules import Rule
from mpidl.schema import Natural, NonNegative
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
    restart : bool
        Whether a worker whose gradient is late when the step ends gives it up and begins anew with the same batch, so
        that a step takes as long as the N-th fastest of N + b new gradients. Otherwise it finishes the gradient, which
        is dropped, and is late for the next step too.
    """

    name: ClassVar[str] = "backup_sync"
    pushes_gradients: ClassVar[bool] = True

    backup: Natural = 1
    grace: NonNegative = 0.0
    restart: bool = False

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker in algorithm 3 of the paper."""
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters, newer=True)
            gradient = yield Gradient(parameters, batch, unless_late=self.restart)
            if gradient is not None:
                yield Push(gradient)

    def policy(self, replicas: int) -> Policy:
        """Return the parameter server in algorithm 4 of the paper."""
        return FirstOfStep(max(1, replicas - self.backup), replicas, self.grace)

    def pattern(self, replicas: int) -> Pattern:
        pattern = super().pattern(replicas)
        return pattern._replace(pushes_gradients=False, gives_up=True) if self.restart else pattern

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing("grace", self.grace, deterministic)
        check_timing("restart", self.restart, deterministic)
