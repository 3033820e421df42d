"""Policies that act on each push by itself: apply, add, assign, or drop it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from mpidl.shards.policies.policy import Policy, Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class ApplyAtOnce(Policy):
    """Apply the rule to each push, a gradient, at once; `scale` returns the factor of its rate for its staleness."""

    adds_up = True

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale, self.sums, self.by_arrival = scale, scale is unscaled, scale is not unscaled

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.update(chunk, values, push.ordinal, self._scale(push.staleness))


class AddChange(Policy):
    """Add each push, a change made by the worker's own rule; `scale` returns the factor of it for its staleness."""

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale, self.by_arrival = scale, scale is not unscaled
        # Scaling damps all changes, those of statistics too.
        self.sums = self.adds_up = scale is unscaled

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.add(chunk, values, self._scale(push.staleness))


class Assign(Policy):
    """Replace the parameters by each push, such as the mean of all replicas' parameters."""

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.assign(chunk, values)


class DropStale(Policy):
    """Drop pushes with a staleness above `bound`, and leave the others to another policy."""

    by_arrival = True

    def __init__(self, policy: Policy, bound: int) -> None:
        self._policy, self._bound = policy, bound
        self.awaited, self.compares, self.adds_up = policy.awaited, policy.compares, policy.adds_up

    def __copy__(self) -> DropStale:
        return DropStale(copy(self._policy), self._bound)

    def attach(self, shard: ShardState) -> None:
        self._policy.attach(shard)

    def pass_time(self, shard: ShardState, now: float) -> float:
        return self._policy.pass_time(shard, now)

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
        """Count a dropped push, which doesn't advance the clock."""
        if self.takes(push.staleness):
            self._policy.end_push(shard, push)
        else:
            shard.drop(push)

    def state(self) -> dict[str, Any]:
        return self._policy.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._policy.load(state)
