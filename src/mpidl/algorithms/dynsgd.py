"""DynSGD, whose servers scale down stale changes (Hermans 2017; Jiang, Cui, Zhang, Yu 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Pattern, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Windowed, commit_windows
from mpidl.schema import Count, Positive
from mpidl.shards.policies import AddChange, Policy, inverse_plus_one


@dataclass(frozen=True)
class Dynsgd(Windowed):
    """Replicas commit the change of `window` local steps, which servers divide by its staleness + 1."""

    name: ClassVar[str] = "dynsgd"

    rate: Positive = 0.2
    window: Count = 4

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        return commit_windows(parameters, self.rate, self.window, state)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes, each divided by its staleness + 1."""
        return AddChange(inverse_plus_one)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(repeatable=True)
