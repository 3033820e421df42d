"""Ringleader ASGD (Maranjyan, Richtarik 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica, push_each_gradient
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.shards.policies import GradientTable, Policy


@dataclass(frozen=True)
class Ringleader(Algorithm):
    """Servers keep a mean gradient of each replica, and update by the mean of all: once for each replica in a round.

    Notes
    -----
    x <- x - rate (1/n) sum_i (1/b_i) sum_j g_ij, where g_ij are the b_i gradients of replica i in this round. A round
    first gathers until each replica has pushed; then each replica's next push makes an update, and what it pushes after
    that belongs to the next round. Where each replica has data of its own, training converges to the optimum of the
    mean of their objectives. No replica waits, no gradient is dropped, and none is more than 2 n - 2 updates late. A
    server needs the memory of n + 1 more vectors like its parameters.
    """

    name: ClassVar[str] = "ringleader"
    pushes_gradients: ClassVar[bool] = True

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker, which computes all the time."""
        return push_each_gradient(parameters)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that keeps the gradients of all replicas."""
        return GradientTable(replicas)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(even=True)
