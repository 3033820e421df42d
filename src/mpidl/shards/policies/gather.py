"""Gathering the pushes of any workers into one update."""

from __future__ import annotations

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.policies.policy import Policy
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class Gather(Policy):
    """After every `count` gradients, from whichever workers, give their mean to the rule (n-softsync).

    Parameters
    ----------
    count : int
        Gradients of one update.
    scale : callable
        Of a gradient's staleness, its weight in the mean.
    """

    _adding = Sgd()

    def __init__(self, count: int, scale: Scale = unscaled) -> None:
        self._count, self._scale = count, scale

    def attach(self, shard: ShardState) -> None:
        """See `Policy.attach`."""
        self._sum = np.zeros_like(shard.parameters)
        self._gathered = [0] * shard.chunks
        self._updates = [0] * shard.chunks
        self._pushes = 0

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        gathered = shard.part(self._sum, chunk)
        self._adding.update(gathered, (), values, 1, -self._scale(push.staleness) / self._count)
        self._gathered[chunk] += 1
        if self._gathered[chunk] == self._count:
            self._apply(shard, chunk)

    def _apply(self, shard: ShardState, chunk: int) -> None:
        gathered = shard.part(self._sum, chunk)
        self._updates[chunk] += 1
        shard.update(chunk, gathered, self._updates[chunk])
        gathered.fill(0)
        self._gathered[chunk] = 0

    def apply_rest(self, shard: ShardState) -> None:
        """See `Policy.apply_rest`: the last few gradients are an update, each with the weight it would have had."""
        for chunk, gathered in enumerate(self._gathered):
            if gathered:
                self._apply(shard, chunk)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """See `Policy.end_push`: the clock counts updates, not pushes."""
        self._pushes += 1
        if self._pushes % self._count == 0:
            shard.clock += 1
