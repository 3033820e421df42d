"""Leaving out pushes that come too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpidl.policies.policy import Policy, Push

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shard import Shard


class DropStale(Policy):
    """Give fresh pushes to another policy, and drop those whose staleness exceeds a bound.

    Parameters
    ----------
    policy : Policy
        For the pushes that count.
    bound : int
        Largest staleness that counts.
    """

    def __init__(self, policy: Policy, bound: int) -> None:
        self._policy, self._bound = policy, bound
        self.awaited = policy.awaited  # type: ignore[misc]

    def attach(self, shard: Shard) -> None:
        """See `Policy.attach`."""
        self._policy.attach(shard)

    def leave(self, shard: Shard, worker: int) -> None:
        """See `Policy.leave`."""
        self._policy.leave(shard, worker)

    def finish(self, shard: Shard) -> None:
        """See `Policy.finish`."""
        self._policy.finish(shard)

    def receive(self, shard: Shard, chunk: int, values: np.ndarray, push: Push) -> None:
        """See `Policy.receive`."""
        if push.staleness <= self._bound:
            self._policy.receive(shard, chunk, values, push)

    def complete(self, shard: Shard, push: Push) -> None:
        """See `Policy.complete`: a dropped push is no update."""
        if push.staleness <= self._bound:
            self._policy.complete(shard, push)
        else:
            shard.drop(push)
