"""DynSGD, whose servers scale down stale changes (Hermans 2017; Jiang, Cui, Zhang, Yu 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import commit_windows
from mpidl.rules import Rule
from mpidl.shards.policies import AddChange, Policy, inverse_plus_one


@dataclass(frozen=True)
class Dynsgd(Algorithm):
    """Replicas commit the change of `window` local steps, which servers divide by its staleness + 1.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps, eta.
    window : int
        Number of local steps between commits, lambda.
    """

    name: ClassVar[str] = "dynsgd"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.2
    window: Annotated[int, Meta(ge=1)] = 4

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        return commit_windows(parameters, self.rate, self.window, state)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes, each divided by its staleness + 1."""
        return AddChange(inverse_plus_one)
