"""Synchronous SGD with an all-reduce: hardsync (Zhang, Gupta, Lian, Liu 2016; Chen et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Gradient, NextBatch, Reduce


@dataclass(frozen=True)
class Sync(Algorithm):
    """All replicas step together by the mean of their gradients: serial SGD on batches of replicas x batch samples.

    Gradients are weighted by the samples of their batches, or by the batches' weights.
    """

    name: ClassVar[str] = "sync"

    @property
    def exchange(self) -> Exchange:
        return Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the learner of the papers."""
        while True:
            batch = yield NextBatch()
            gradient = None
            if batch is not None:
                gradient = yield Gradient(parameters, batch)
            if not (yield Reduce(gradient, parameters, weight=state.weight)):
                break
