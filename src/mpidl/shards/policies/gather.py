"""Gathering the pushes of any workers into one update."""

from __future__ import annotations

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.policies.gathering import Gathering
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class Gather(Gathering):
    """Give the rule the mean of every `count` gradients, from whichever workers.

    Parameters
    ----------
    count : int
        Gradients of one update, the paper's n.
    scale : callable
        Takes a gradient's staleness and returns its weight in the mean.

    References
    ----------
    W. Zhang, S. Gupta, X. Lian, J. Liu (2016), Staleness-aware async-SGD for distributed deep learning: n-softsync.
    """

    _adding = Sgd()

    def __init__(self, count: int, scale: Scale = unscaled) -> None:
        self._count, self._scale = count, scale

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        gathered = shard.part(self._sum, chunk)
        self._adding.update(gathered, (), values, 1, -self._scale(push.staleness) / self._count)
        self._gathered[chunk] += 1
        if self._gathered[chunk] >= self._count:
            self._apply(shard, chunk)

    def apply_rest(self, shard: ShardState) -> None:
        """See `Policy.apply_rest`: the last few gradients are an update, each with the weight it would have had."""
        for chunk, gathered in enumerate(self._gathered):
            if gathered:
                self._apply(shard, chunk)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """See `Policy.end_push`: the clock counts updates, not pushes."""
        if not self._gathered[-1]:
            shard.clock += 1
