"""Dropping pushes that come too late."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import PushHeader, ShardState


class DropStale(Policy):
    """Give a push to another policy unless its staleness exceeds a bound; else drop it.

    Parameters
    ----------
    policy : Policy
        Acts on the pushes that are not dropped.
    bound : int
        Largest staleness of a push that is not dropped.
    """

    by_staleness = True

    def __init__(self, policy: Policy, bound: int) -> None:
        self._policy, self._bound = policy, bound
        self.awaited, self.compares, self.adds_up = policy.awaited, policy.compares, policy.adds_up

    def __copy__(self) -> DropStale:
        return DropStale(copy(self._policy), self._bound)

    def attach(self, shard: ShardState) -> None:
        self._policy.attach(shard)

    def look(self, shard: ShardState, now: float) -> float:
        return self._policy.look(shard, now)

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        self._policy.remove_worker(shard, worker)

    def add_worker(self, worker: int) -> None:
        self._policy.add_worker(worker)

    def expect_all(self) -> None:
        self._policy.expect_all()

    def apply_rest(self, shard: ShardState) -> None:
        self._policy.apply_rest(shard)

    def takes(self, staleness: int) -> bool:
        return staleness <= self._bound

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        if self.takes(push.staleness):
            self._policy.apply_chunk(shard, chunk, values, push)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """See `Policy.end_push`: a dropped push is no update."""
        if self.takes(push.staleness):
            self._policy.end_push(shard, push)
        else:
            shard.drop(push)

    def state(self) -> dict[str, Any]:
        return self._policy.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._policy.load(state)
