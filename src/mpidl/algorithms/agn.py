"""Accumulated gradient normalisation, AGN (Hermans 2017; Hermans, Spanakis, Moeckel 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import commit_windows
from mpidl.rules import Rule
from mpidl.shards.policies import AddChange, Policy


@dataclass(frozen=True)
class Agn(Algorithm):
    """Replicas commit the change of `window` local steps divided by their number, and fetch the parameters anew.

    dist-keras calls this algorithm ADAG; the ADAG of Hermans' thesis is `Adag`. With a window of 1 it is Downpour with
    plain SGD.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps, eta.
    window : int
        Number of local steps between commits, lambda.
    """

    name: ClassVar[str] = "agn"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.5
    window: Annotated[int, Meta(ge=1)] = 4

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis; see `Algorithm.replica`."""
        return commit_windows(parameters, self.rate, self.window, state, lambda done: 1 / done)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes."""
        return AddChange()
