"""DiLoCo (Douillard et al. 2023), and its asynchronous form with delayed Nesterov momentum (Liu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Push, Reduce
from mpidl.algorithms.windowed import Inner, inner_steps, local_steps
from mpidl.errors import UsageError
from mpidl.rules import Nesterov, Rule
from mpidl.shards.policies import ApplyAtOnce, DelayedNesterov, Policy


@dataclass(frozen=True)
class Diloco(Algorithm):
    """Replicas make `window` inner steps; an outer rule applies the mean of their changes as if it were a gradient.

    The shards' rule is the outer rule. By default it is Nesterov(0.7, 0.9), as in the paper.

    Parameters
    ----------
    rate : float
        Learning rate of the inner steps.
    window : int
        Number of inner steps in a round, H.
    inner : str
        Rule of the inner steps, any of `mpidl.rules`, with its other settings at their defaults. Its state stays on the
        replica.
    asynchronous : bool
        Whether servers apply the change of each replica by delayed Nesterov when it arrives, so that no replica waits.
    delay : int, optional
        Number of changes between two updates of the outer momentum where `asynchronous` is set, N. By default twice the
        number of replicas.
    """

    name: ClassVar[str] = "diloco"
    default_rule: ClassVar[Rule | None] = Nesterov(0.7, 0.9)
    outer: ClassVar[bool] = True

    rate: Annotated[float, Meta(gt=0)] = 0.001
    window: Annotated[int, Meta(ge=1)] = 16
    inner: Inner = "adamw"
    asynchronous: bool = False
    delay: Annotated[int, Meta(ge=1)] | None = None

    @property
    def exchange(self) -> Exchange:
        """See `Algorithm.exchange`."""
        return Exchange.SERVERS if self.asynchronous else Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the first paper (algorithm 1), or of the second; see `Algorithm.replica`."""
        step = inner_steps(parameters, self.inner, self.rate, state)
        change = state.keep("start", parameters.copy())
        while True:
            if not state.counts["done"]:
                # A replica that is resumed between its fetch and its first step has fetched already.
                if self.asynchronous and not state.counts["fetched"]:
                    yield Fetch(parameters)
                    state.counts["fetched"] = 1
                change[:] = parameters
            done = yield from local_steps(parameters, self.window, step, state)
            change -= parameters
            if not self.asynchronous:
                if not (yield Reduce(change if done else None, parameters)):
                    break
            elif done:
                del state.counts["fetched"]
                yield Push(change)
            else:
                break

    def policy(self, replicas: int) -> Policy:
        """Return the policy that applies the mean change, or delayed Nesterov for each change."""
        return DelayedNesterov(self.delay or 2 * replicas) if self.asynchronous else ApplyAtOnce()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        """See `Algorithm.check`."""
        if self.asynchronous and not isinstance(rule, Nesterov):
            found = "none" if rule is None else rule.name
            raise UsageError(f"server.rule: {found}, expected nesterov with algorithm.asynchronous = true")
