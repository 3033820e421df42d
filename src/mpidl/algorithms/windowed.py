"""Base classes and common parts of algorithms whose replicas make local steps between exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from mpidl.algorithms.algorithm import Algorithm, Exchange, check_timing
from mpidl.algorithms.replica_state import ReplicaState, Step
from mpidl.algorithms.requests import Gradient, NextBatch, Reduce, Request, Speed
from mpidl.rules import RULES, Rule
from mpidl.schema import Count, Positive
from mpidl.shards.policies import Assign, Policy

#: Names of the rules that local steps can use.
Inner = Literal["adagrad", "adam", "adamw", "momentum", "muon", "nesterov", "rmsprop", "sgd"]


@dataclass(frozen=True)
class LocalSteps(Algorithm):
    """An algorithm whose replicas make steps of their own.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps, eta.
    """

    default_rule: ClassVar[Rule | None] = None

    rate: Positive | None


@dataclass(frozen=True)
class Windowed(LocalSteps):
    """An algorithm whose replicas exchange after every `window` local steps.

    Parameters
    ----------
    window : int
        Number of local steps between exchanges: lambda in Hermans' thesis, H in the papers on DiLoCo.
    """

    window: Count | None


@dataclass(frozen=True)
class Rounds(LocalSteps):
    """An algorithm whose replicas make a round of local steps by a rule of their own, and continue from a mean.

    Parameters
    ----------
    inner : str
        Rule of the local steps, any of `mpidl.rules`, with its other settings at their defaults. Its state stays on the
        replica.
    dynamic : bool
        Whether a slower replica makes fewer steps in a round, in proportion to its speed, so that all end together
        (dynamic local updates). Replicas are then weighted in the mean by their steps.

    References
    ----------
    B. Liu et al. (2024), Asynchronous local-SGD training for language modeling, section 4.2: dynamic local updates.
    """

    _: KW_ONLY
    inner: Inner = "momentum"
    dynamic: bool = False

    @property
    def exchange(self) -> Exchange:
        return Exchange.REDUCTION

    @property
    def local_rule(self) -> Rule:
        return RULES[self.inner](rate=self.rate)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that assigns the mean."""
        return Assign()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing(self, deterministic, "dynamic")

    def inner_steps(self, parameters: Any, state: ReplicaState) -> Step:
        """Return a function of a gradient that makes a step of the replica's parameters by the inner rule."""
        state.keep("parameters", parameters)
        return state.step_by(self.local_rule, parameters)

    def local_steps(
        self, steps: int, parameters: Any, step: Callable[[Any], None], state: ReplicaState
    ) -> Generator[Request, Any, int]:
        """Make the steps of a round, or fewer if the data run out, and return their number.

        A resumed replica makes the remaining ones; ``counts["done"]`` is the number of those made, 0 between two
        rounds, and ``counts["window"]`` the length of a dynamic round.

        Parameters
        ----------
        steps : int
            Number of steps, or that of the fastest replica if `dynamic` is set.
        parameters : array, shape (size,)
            The replica's own; gradients are computed at them.
        step : callable
            Takes a gradient, shape (size,), and changes the parameters by it.
        state : ReplicaState
        """
        counts = state.counts
        if self.dynamic:
            if not counts["done"]:
                counts["window"] = max(1, int(steps * (yield Speed())))
            steps = counts["window"]
        while counts["done"] < steps and (batch := (yield NextBatch())) is not None:
            step((yield Gradient(parameters, batch)))
            counts["done"] += 1
        return counts.pop("done", 0)

    def reduction(self, vector: Any, parameters: Any, done: int) -> Reduce:
        """Return the request for the mean of the replicas' vectors, to which a replica without steps adds none."""
        return Reduce(vector if done else None, parameters, weight=float(done) if self.dynamic else 1.0)
