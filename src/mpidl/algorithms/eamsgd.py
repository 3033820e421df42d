"""Elastic averaging SGD with momentum, EAMSGD (Zhang, Choromanska, LeCun 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.easgd import default_alpha
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.rules import Momentum, Rule
from mpidl.shards.policies import AddChange, Policy


@dataclass(frozen=True)
class Eamsgd(Algorithm):
    """`Easgd` with Nesterov's momentum on the replicas: v = delta v - rate g(x + delta v), x = x + v.

    Parameters
    ----------
    rate : float
        Learning rate of the replicas, eta.
    tau : int
        Number of steps between two exchanges with the center.
    alpha : float, optional
        Strength of the force, eta rho. By default 0.9 / replicas, at most 0.5.
    delta : float
        Momentum.
    """

    name: ClassVar[str] = "eamsgd"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.03
    tau: Annotated[int, Meta(ge=1)] = 4
    alpha: Annotated[float, Meta(ge=0, le=1)] | None = None
    delta: Annotated[float, Meta(ge=0, lt=1)] = 0.9

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the paper."""
        alpha = self.alpha if self.alpha is not None else default_alpha(replicas)
        center, elastic = parameters.copy(), parameters.copy()
        counts, x = state.counts, state.keep("x", parameters.copy())
        # The rule's velocity is -v / rate.
        local = state.step_by(Momentum(self.rate, self.delta), x)
        (velocity,) = local.state
        if not counts["fetched"]:
            yield Fetch(x)
            counts["fetched"] = 1
        while (batch := (yield NextBatch())) is not None:
            exchange = counts["steps"] % self.tau == 0
            if exchange:
                yield Fetch(center)
                elastic[:] = x
                elastic -= center
                elastic *= alpha
                yield Push(elastic)
            local.multiply_by_rates(velocity, -self.delta, out=parameters)
            parameters += x
            local((yield Gradient(parameters, batch)))
            if exchange:
                x -= elastic

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the elastic differences to the center."""
        return AddChange()
