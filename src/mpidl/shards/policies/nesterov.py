"""Nesterov's momentum for pushes that come one by one."""

from __future__ import annotations

import numpy as np

from mpidl.shards.policies.gathering import Gathering
from mpidl.shards.state import PushHeader, ShardState


class DelayedNesterov(Gathering):
    """Apply each gradient at once with weight 1 / count, and momentum only with every `count`-th.

    The shard's rule is Nesterov. When the last of `count` gradients has come, what has been applied of the others is
    taken back, and the rule is given the mean of all.

    Parameters
    ----------
    count : int
        Gradients between two updates of the momentum, the paper's N.

    References
    ----------
    B. Liu et al. (2024), Asynchronous local-SGD training for language modeling, algorithm 3 with c = 0.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        gathered, share = shard.part(self._sum, chunk), shard.rate / self._count
        self._gathered[chunk] += 1
        if self._gathered[chunk] < self._count:
            shard.add(chunk, values, -share)
            gathered += values
            return
        shard.add(chunk, gathered, share)
        gathered += values
        gathered /= self._count
        self._apply(shard, chunk)
