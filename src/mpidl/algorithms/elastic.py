"""Elastic averaging SGD (Zhang, Choromanska, LeCun 2015; Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Exchange, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Reduce
from mpidl.algorithms.windowed import Inner, LocalSteps, Windowed
from mpidl.rules import RULES, Momentum, Rule, Sgd
from mpidl.schema import Count, Fraction, NonNegative, Positive
from mpidl.shards.policies import AddChange, Policy


def default_alpha(replicas: int) -> float:
    """Return 0.9 / replicas, at most 0.5: with one replica, 0.9 diverges at common rates."""
    return min(0.5, 0.9 / replicas)


def _pull(own: Any, center: Any, strength: float, out: Any) -> None:
    """Store the elastic difference between a replica's own parameters and the center, times a strength, in `out`."""
    out[:] = own
    out -= center
    out *= strength


@dataclass(frozen=True)
class Elastic(LocalSteps):
    """An algorithm whose replicas train by themselves, tied to a center by an elastic force.

    Parameters
    ----------
    tau : int
        Number of local steps between two exchanges with the center.
    alpha : float, optional
        Strength of the force, eta rho. By default 0.9 / replicas, at most 0.5. The stronger the force, the less a
        replica explores.
    """

    tau: Count
    alpha: Annotated[float, Meta(ge=0, le=1)] | None = None

    def force(self, replicas: int) -> float:
        """Return `alpha`, or its default."""
        return default_alpha(replicas) if self.alpha is None else self.alpha

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the elastic differences to the center."""
        return AddChange()


@dataclass(frozen=True)
class Easgd(Elastic):
    """Replicas train by themselves, and an elastic force ties them to a center.

    Parameters
    ----------
    asynchronous : bool
        Whether each replica exchanges by its own clock with the servers, which have the center. If not, all replicas
        exchange together, without servers.
    inner : str
        Rule of the replicas' own steps, any of `mpidl.rules`, with its other settings at their defaults; plain SGD in
        the paper.

    Notes
    -----
    In an exchange the center moves by alpha (x - center) and the replica x by the opposite. The difference is taken
    before the gradient step that follows the exchange.
    """

    name: ClassVar[str] = "easgd"

    rate: Positive = 0.3
    tau: Count = 1
    asynchronous: bool = True
    inner: Inner = "sgd"

    @property
    def local_rule(self) -> Rule:
        return RULES[self.inner](rate=self.rate)

    @property
    def exchange(self) -> Exchange:
        return Exchange.SERVERS if self.asynchronous else Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the paper (algorithm 1, or equations 5 and 6)."""
        counts, local = state.counts, state.step_by(self.local_rule, parameters)
        alpha, center, elastic = self.force(replicas), parameters.copy(), parameters.copy()
        state.keep("parameters", parameters)
        if self.asynchronous and not counts["fetched"]:
            yield Fetch(parameters)
            counts["fetched"] = 1
        while (batch := (yield NextBatch())) is not None:
            exchange = counts["steps"] % self.tau == 0
            if exchange:
                if self.asynchronous:
                    yield Fetch(center)
                _pull(parameters, center, alpha, elastic)
                yield Push(elastic) if self.asynchronous else Reduce(elastic, center, mean=False)
            gradient = yield Gradient(parameters, batch)
            local(gradient)
            if exchange:
                parameters -= elastic
        while not self.asynchronous and (yield Reduce(None, center, mean=False)):
            yield NextBatch()


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
                _pull(x, center, alpha, elastic)
                yield Push(elastic)
            local.multiply_by_rates(velocity, -self.delta, out=parameters)
            parameters += x
            local((yield Gradient(parameters, batch)))
            if exchange:
                x -= elastic


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
                _pull(parameters, center, local.rate * rho, elastic)
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
