"""Elastic averaging SGD with momentum, EAMSGD (Zhang, Choromanska, LeCun 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.easgd import Elastic
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.rules import Momentum
from mpidl.schema import Count, Fraction, Positive


@dataclass(frozen=True)
class Eamsgd(Elastic):
    """`Easgd` with Nesterov's momentum on the replicas: v = delta v - rate g(x + delta v), x = x + v.

    Parameters
    ----------
    delta : float
        Momentum.
    """

    name: ClassVar[str] = "eamsgd"

    rate: Positive = 0.03
    tau: Count = 4
    delta: Fraction = 0.9

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the paper."""
        alpha, center, elastic = self.force(replicas), parameters.copy(), parameters.copy()
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
