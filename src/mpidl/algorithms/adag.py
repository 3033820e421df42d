"""Asynchronous distributed adaptive gradients, ADAG (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import commit_windows
from mpidl.rules import Rule
from mpidl.shards.policies import DampedChange, Policy


@dataclass(frozen=True)
class Adag(Algorithm):
    """Replicas commit the change of `window` local steps, scaled down where other replicas have moved the parameters.

    This is the ADAG of Hermans' thesis. What dist-keras calls ADAG is `Agn`.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps, eta.
    window : int
        Number of local steps between commits, lambda.
    """

    name: ClassVar[str] = "adag"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.2
    window: Annotated[int, Meta(ge=1)] = 4

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis; see `Algorithm.replica`."""
        return commit_windows(parameters, self.rate, self.window, state)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that scales each coordinate by how far it has moved since the worker's last commit."""
        return DampedChange(self.rate)
