"""Asynchronous elastic averaging SGD with a communication window, AEASGD (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.easgd import default_alpha
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.algorithms.windowed import Windowed
from mpidl.rules import Sgd
from mpidl.schema import Count, NonNegative, Positive
from mpidl.shards.policies import AddChange, Policy


@dataclass(frozen=True)
class Aeasgd(Windowed):
    """Replicas make `window` local steps, then fetch the center; both move toward each other by an elastic force.

    A replica at x moves by -E and the center c by E, where E = rate rho (x - c).

    Parameters
    ----------
    rho : float, optional
        Strength of the force. By default such that rate rho = 0.9 / replicas, at most 0.5.
    """

    name: ClassVar[str] = "aeasgd"

    rate: Positive = 0.3
    window: Count = 2
    rho: NonNegative | None = None

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        counts, local = state.counts, state.step_by(Sgd(self.rate), parameters)
        rho = self.rho if self.rho is not None else default_alpha(replicas) / self.rate
        center, elastic = parameters.copy(), parameters.copy()
        state.keep("parameters", parameters)
        if not counts["fetched"]:
            yield Fetch(parameters)
            counts["fetched"] = 1
        while True:
            if counts["done"] == self.window:
                yield Fetch(center)
                elastic[:] = parameters
                elastic -= center
                elastic *= local.rate * rho
                parameters -= elastic
                yield Push(elastic)
                counts["done"] = 0
            batch = yield NextBatch()
            if batch is None:
                break
            gradient = yield Gradient(parameters, batch)
            local(gradient)
            counts["done"] += 1

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the elastic differences to the center."""
        return AddChange()
