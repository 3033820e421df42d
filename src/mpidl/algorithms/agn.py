"""Accumulated gradient normalisation, AGN (Hermans 2017; Hermans, Spanakis, Moeckel 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import commit_windows, falling_rate
from mpidl.rules import Rule
from mpidl.shards.policies import AddChange, Policy


@dataclass(frozen=True)
class Agn(Algorithm):
    """Replicas commit the change of `window` local steps divided by `window`, and fetch the parameters again.

    dist-keras calls this algorithm ADAG; the ADAG of Hermans' thesis is `Adag`. With a window of 1 it is Downpour with
    plain SGD.

    Parameters
    ----------
    rate : float, optional
        Learning rate of the local steps, eta. By default 0.5, or 0.8 / replicas if that is lower.
    window : int
        Number of local steps between commits, lambda. A last window of fewer steps is divided by lambda too.
    """

    name: ClassVar[str] = "agn"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] | None = None
    window: Annotated[int, Meta(ge=1)] = 2

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        rate = falling_rate(replicas) if self.rate is None else self.rate
        return commit_windows(parameters, rate, self.window, state, 1 / self.window)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes."""
        return AddChange()
