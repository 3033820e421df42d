"""Model averaging (McDonald, Hall, Mann 2010; as federated averaging: McMahan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Inner, averaged_rounds, inner_steps
from mpidl.rules import Rule
from mpidl.shards.policies import Assign, Policy


@dataclass(frozen=True)
class Averaging(Algorithm):
    """Every `tau` local steps, all replicas continue from the mean of their parameters.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps.
    tau : int
        Number of local steps between two averages.
    inner : str
        Rule of the local steps, any of `mpidl.rules`, with its other settings at their defaults. Its state stays on the
        replica.
    dynamic : bool
        Whether a slower replica makes fewer steps in a round, in proportion to its speed, so that all end together
        (dynamic local updates). Replicas are then weighted in the mean by their steps.
    """

    name: ClassVar[str] = "averaging"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.05
    tau: Annotated[int, Meta(ge=1)] = 4
    inner: Inner = "momentum"
    dynamic: bool = False

    @property
    def exchange(self) -> Exchange:
        return Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the replica."""
        step = inner_steps(parameters, self.inner, self.rate, state)
        return averaged_rounds(parameters, self.tau, self.dynamic, step, state)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that assigns the mean."""
        return Assign()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing("dynamic", self.dynamic, deterministic)
