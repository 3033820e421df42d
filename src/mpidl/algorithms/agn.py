"""Accumulated gradient normalisation, AGN (Hermans 2017; Hermans, Spanakis, Moeckel 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Windowed, commit_windows, falling_rate
from mpidl.schema import Count, Positive
from mpidl.shards.policies import AddChange, Policy


@dataclass(frozen=True)
class Agn(Windowed):
    """Replicas commit the change of `window` local steps divided by `window`, and fetch the parameters again.

    dist-keras calls this algorithm ADAG; the ADAG of Hermans' thesis is `Adag`. With a window of 1 it is Downpour with
    plain SGD. A last window of fewer steps is divided by `window` too.

    Parameters
    ----------
    rate : float, optional
        Learning rate of the local steps, eta. By default 0.5, or 0.8 / replicas if that is lower.
    """

    name: ClassVar[str] = "agn"

    rate: Positive | None = None
    window: Count = 2

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        return commit_windows(parameters, falling_rate(self.rate, replicas), self.window, state, 1 / self.window)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes."""
        return AddChange()
