"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Inner, averaged_rounds, inner_steps
from mpidl.rules import Rule, Sgd
from mpidl.shards.policies import Assign, Policy


@dataclass(frozen=True)
class Fedprox(Algorithm):
    """`Averaging` with a proximal term: replicas add (mu / 2) |w - w_t|^2 to their loss, where w_t is the last average.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps.
    window : int
        Number of local steps in a round.
    mu : float
        Strength of the proximal term; with 0 the algorithm is federated averaging.
    inner : str
        Rule of the local steps, any of `mpidl.rules`, with its other settings at their defaults. Its state stays on the
        replica.
    dynamic : bool
        Whether a slower replica makes fewer steps in a round, in proportion to its speed, so that all end together
        (dynamic local updates). Replicas are then weighted in the mean by their steps.
    """

    name: ClassVar[str] = "fedprox"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.05
    window: Annotated[int, Meta(ge=1)] = 16
    mu: Annotated[float, Meta(ge=0)] = 0.01
    inner: Inner = "momentum"
    dynamic: bool = False

    @property
    def exchange(self) -> Exchange:
        return Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the device in algorithm 2 of the paper."""
        local, adding = inner_steps(parameters, self.inner, self.rate, state), Sgd()
        start = state.keep("start", parameters.copy())

        def step(gradient: Any) -> None:
            # Add the gradient of the proximal term, mu (w - w_t).
            adding.update(gradient, (), parameters, 1, -self.mu)
            adding.update(gradient, (), start, 1, self.mu)
            local(gradient)

        def begin() -> None:
            start[:] = parameters

        return averaged_rounds(parameters, self.window, self.dynamic, step, state, begin)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that assigns the mean."""
        return Assign()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing("dynamic", self.dynamic, deterministic)
