"""The interface between an algorithm and the engines."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl import wire
from mpidl.algorithms.requests import Request
from mpidl.algorithms.steps import Steps
from mpidl.errors import UsageError
from mpidl.rules import Adagrad, Rule, Sgd
from mpidl.shards.policies import ApplyAtOnce, DropStale, Policy

Replica = Generator[Request, Any, None]


class Exchange(Enum):
    """Through what replicas exchange parameters, and so which requests they make."""

    SERVERS = "servers"
    REDUCTION = "reduction"
    SHARED_MEMORY = "shared memory"
    OPERATIONS = "operations"


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm: what a replica does and what a shard does with a push. Subclasses are frozen dataclasses.

    The fields of a subclass are the keys that ``[algorithm]`` takes in a configuration, besides those of all.

    Parameters
    ----------
    wire : str
        How pushes travel: "fp32" (as they are), "bf16", "topk:FRACTION" or "onebit"; see `mpidl.wire`.
    max_staleness : int, optional
        Drop pushes that are staler; their portions are logged.
    """

    name: ClassVar[str]
    #: The shards' rule where the configuration names none; None if an algorithm leaves no choice: shards add.
    default_rule: ClassVar[Rule | None] = Adagrad(0.01)

    wire: str = "fp32"
    max_staleness: Annotated[int, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for settings that don't go together."""
        travels = wire.parse(self.wire) is not None
        if self.exchange is not Exchange.SERVERS and (travels or self.max_staleness is not None):
            key, value = ("wire", self.wire) if travels else ("max_staleness", self.max_staleness)
            raise UsageError(f"{key}: {value!r}, {self.name} exchanges by {self.exchange.value}, without pushes")

    @property
    def exchange(self) -> Exchange:
        """Through what replicas exchange parameters; without servers, their ranks are workers."""
        return Exchange.SERVERS

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return what replica `number` does, as a generator of requests.

        Parameters
        ----------
        number : int
            The replica, from 0.
        parameters : array, shape (size,)
            The replica's own copy of the parameters, to compute gradients at; the shared vector itself where the
            exchange is by shared memory. Without servers it holds the present parameters at the start.
        replicas : int
            How many there are.
        steps : Steps
            Makes the replica's own steps, if it makes any.
        """
        raise NotImplementedError

    def policy(self, replicas: int) -> Policy:
        """Return what a shard does with the pushes it receives; each shard gets an instance of its own."""
        return ApplyAtOnce()

    def shard_policy(self, replicas: int) -> Policy:
        """Return `policy` and, around it, what `max_staleness` asks for."""
        policy = self.policy(replicas)
        return policy if self.max_staleness is None else DropStale(policy, self.max_staleness)

    def held(self) -> Rule:
        """Return the rule of shards that choose none: what vectors they keep beside the parameters."""
        return Sgd()

    def check(self, deterministic: bool, rule: Rule) -> None:
        """Raise UsageError if the algorithm's settings don't go with the run's, or with the shards' rule."""
