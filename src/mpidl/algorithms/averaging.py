"""Model averaging (McDonald, Hall, Mann 2010; as federated averaging: McMahan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Rounds
from mpidl.schema import Count, Positive


@dataclass(frozen=True)
class Averaging(Rounds):
    """Every `tau` local steps, all replicas continue from the mean of their parameters.

    Parameters
    ----------
    tau : int
        Number of local steps between two averages.
    """

    name: ClassVar[str] = "averaging"

    rate: Positive = 0.05
    tau: Count = 4

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the replica."""
        step = self.inner_steps(parameters, state)
        while True:
            done = yield from self.local_steps(self.tau, parameters, step, state)
            if not (yield self.reduction(parameters, parameters, done)):
                break
