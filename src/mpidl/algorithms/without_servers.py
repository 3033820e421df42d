"""Synchronous SGD by reductions, and Hogwild! in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Gradient, NextBatch, Reduce, UpdateShared
from mpidl.rules import Rule


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


@dataclass(frozen=True)
class Hogwild(Algorithm):
    """Replicas on one node update one vector of parameters in shared memory, without locks and without a server.

    A replica reads the parameters while others write them, and changes only the elements whose gradient is not 0.
    With sparse gradients collisions are rare.
    """

    name: ClassVar[str] = "hogwild"

    @property
    def exchange(self) -> Exchange:
        return Exchange.SHARED_MEMORY

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the processor in algorithm 1 of the paper."""
        while (batch := (yield NextBatch())) is not None:
            gradient = yield Gradient(parameters, batch)
            yield UpdateShared(gradient)

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing(self, deterministic, "name")
