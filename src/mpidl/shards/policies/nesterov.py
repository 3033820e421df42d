"""Nesterov's momentum for pushes that come one by one."""

from __future__ import annotations

import numpy as np

from mpidl.rules import Sgd
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

    _sgd = Sgd()

    def __init__(self, count: int) -> None:
        self._count = count

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        gathered, share = shard.part(self._sum, chunk), shard.rate / self._count
        self._gathered[chunk] += 1
        if self._gathered[chunk] < self._count:
            self._sgd.update(shard.chunk(chunk), (), values, 1, share)
            gathered += values
            return
        self._sgd.update(shard.chunk(chunk), (), gathered, 1, -share)
        gathered += values
        gathered /= self._count
        self._apply(shard, chunk)
