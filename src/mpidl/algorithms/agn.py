"""Accumulated gradient normalisation, AGN (Hermans 2017; Hermans, Spanakis, Moeckel 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Commits, commit_windows
from mpidl.shards.policies import AddChange, Policy


@dataclass(frozen=True)
class Agn(Commits):
    """Replicas commit the change of `window` local steps divided by `window`, and fetch the parameters again.

    dist-keras calls this algorithm ADAG; the ADAG of Hermans' thesis is `Adag`. With a window of 1 it is Downpour with
    plain SGD. A last window of fewer steps is divided by `window` too.
    """

    name: ClassVar[str] = "agn"

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        rate, window = self.chosen(replicas)
        return commit_windows(parameters, rate, window, state, 1 / window)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes."""
        return AddChange()
