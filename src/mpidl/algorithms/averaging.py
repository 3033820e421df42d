"""Model averaging (McDonald, Hall, Mann 2010), and with a proximal term FedProx (Li et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Rounds, Windowed
from mpidl.rules import Sgd
from mpidl.schema import Count, NonNegative, Positive


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


@dataclass(frozen=True)
class Fedprox(Rounds, Windowed):
    """`Averaging` with a proximal term: replicas add (mu / 2) |w - w_t|^2 to their loss, where w_t is the last average.

    Parameters
    ----------
    mu : float
        Strength of the proximal term; with 0 the algorithm is federated averaging.
    """

    name: ClassVar[str] = "fedprox"

    rate: Positive = 0.05
    window: Count = 16
    mu: NonNegative = 0.01

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the device in algorithm 2 of the paper."""
        local, adding = self.inner_steps(parameters, state), Sgd()
        start = state.keep("start", parameters.copy())

        def step(gradient: Any) -> None:
            # Add the gradient of the proximal term, mu (w - w_t).
            adding.update(gradient, (), parameters, 1, -self.mu)
            adding.update(gradient, (), start, 1, self.mu)
            local(gradient)

        while True:
            if not state.counts["done"]:
                start[:] = parameters
            done = yield from self.local_steps(self.window, parameters, step, state)
            if not (yield self.reduction(parameters, parameters, done)):
                break
