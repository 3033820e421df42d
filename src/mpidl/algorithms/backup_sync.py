"""Synchronous SGD with backup workers (Chen, Pan, Monga, Bengio, Jozefowicz 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.algorithms.steps import Steps
from mpidl.shards.policies import FirstOfStep, Policy


@dataclass(frozen=True)
class BackupSync(Algorithm):
    """Of N + b replicas, the first N gradients of a step are its update; those that come later are dropped.

    Parameters
    ----------
    backup : int
        The paper's b. At least one replica always counts.
    """

    name: ClassVar[str] = "backup_sync"

    backup: Annotated[int, Meta(ge=0)] = 1

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return the worker of the paper's algorithm 3; see `Algorithm.replica`."""
        while True:
            batch = yield NextBatch()
            if batch is None:
                break
            yield Fetch(parameters, newer=True)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)

    def policy(self, replicas: int) -> Policy:
        """Return the parameter server of the paper's algorithm 4."""
        return FirstOfStep(max(1, replicas - self.backup), replicas)
