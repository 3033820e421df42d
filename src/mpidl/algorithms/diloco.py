"""DiLoCo (Douillard et al. 2023), and asynchronous with delayed Nesterov (Liu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica
from mpidl.algorithms.requests import Fetch, Push, Reduce
from mpidl.algorithms.steps import Steps
from mpidl.algorithms.windowed import Inner, inner_steps, local_steps
from mpidl.errors import UsageError
from mpidl.rules import Nesterov, Rule
from mpidl.shards.policies import ApplyAtOnce, DelayedNesterov, Policy


@dataclass(frozen=True)
class Diloco(Algorithm):
    """Replicas make `window` inner steps; an outer rule takes the mean of their changes for a gradient.

    The outer rule is the shards'; by default Nesterov(0.7, 0.9), the paper's.

    Parameters
    ----------
    rate : float
        Learning rate of the inner rule.
    window : int
        Inner steps of a round, the paper's H.
    inner : str
        The inner rule, any of `mpidl.rules` with its other settings at their defaults; its state stays on the replica.
    asynchronous : bool
        Nobody waits: servers give each replica's change to delayed Nesterov as it comes.
    delay : int, optional
        Changes between two updates of the outer momentum, the paper's N; twice as many as replicas if not given.
    """

    name: ClassVar[str] = "diloco"
    default_rule: ClassVar[Rule | None] = Nesterov(0.7, 0.9)

    rate: Annotated[float, Meta(gt=0)] = 0.001
    window: Annotated[int, Meta(ge=1)] = 16
    inner: Inner = "adamw"
    asynchronous: bool = False
    delay: Annotated[int, Meta(ge=1)] | None = None

    @property
    def exchange(self) -> Exchange:
        """See `Algorithm.exchange`."""
        return Exchange.SERVERS if self.asynchronous else Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return the worker of the first paper's algorithm 1, or the second's; see `Algorithm.replica`."""
        step = inner_steps(parameters, self.inner, self.rate, steps)
        change = parameters.copy()
        while True:
            if self.asynchronous:
                yield Fetch(parameters)
            change[:] = parameters
            done = yield from local_steps(parameters, self.window, step)
            change -= parameters
            if not self.asynchronous:
                if not (yield Reduce(change if done else None, parameters)):
                    break
            elif done:
                yield Push(change)
            else:
                break

    def policy(self, replicas: int) -> Policy:
        """Give the outer rule the mean change, or each change to delayed Nesterov."""
        return DelayedNesterov(self.delay or 2 * replicas) if self.asynchronous else ApplyAtOnce()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        """See `Algorithm.check`."""
        if self.asynchronous and not isinstance(rule, Nesterov):
            found = "none" if rule is None else rule.name
            raise UsageError(f"server.rule: {found}, expected nesterov with algorithm.asynchronous = true")
