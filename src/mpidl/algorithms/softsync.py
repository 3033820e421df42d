"""n-softsync (Zhang, Gupta, Lian, Liu 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Replica, push_each_gradient
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.schema import Count
from mpidl.shards.policies import AccumulateGradients, Policy, inverse, unscaled


@dataclass(frozen=True)
class Softsync(Algorithm):
    """Servers make one update from every floor(replicas / n) gradients, from any replicas.

    Parameters
    ----------
    n : int
        Divisor of the number of replicas. With 1, an update has as many gradients as there are replicas; with the
        number of replicas it has one, as in Downpour.
    modulate : bool
        Whether the rate of each gradient is divided by its staleness: alpha_0 / max(staleness, 1), also in the steps
        that it makes later by momentum.

    Notes
    -----
    1-softsync is not synchronous SGD: a fast replica may contribute two of the gathered gradients.

    The mean staleness is (replicas - 1) / c, regardless of timing, if each replica computes all the time. It is less if
    exchanges take as long as gradients, because a replica that waits for its push computes nothing that becomes stale.

    Where each replica has data of its own, training leans towards those of fast replicas; with `modulate` further than
    by their speeds alone, since gradients of slow replicas are staler.
    """

    name: ClassVar[str] = "softsync"
    pushes_gradients: ClassVar[bool] = True

    n: Count = 1
    modulate: bool = True

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the learner of the paper, which fetches right after each push."""
        return push_each_gradient(parameters)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that gathers floor(replicas / n) gradients, the paper's c."""
        return AccumulateGradients(max(1, replicas // self.n), inverse if self.modulate else unscaled)
