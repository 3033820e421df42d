"""Nesterov's momentum for pushes that come one by one."""

from __future__ import annotations

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import PushHeader, ShardState


class DelayedNesterov(Policy):
    """Apply each gradient at once with weight 1 / count, and momentum only with every `count`-th.

    The shard's rule is Nesterov: of `count` gradients, it is given the mean when the last has come, and what has been
    applied of them by then is taken back.

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

    def attach(self, shard: ShardState) -> None:
        """See `Policy.attach`."""
        self._sum = np.zeros_like(shard.parameters)
        self._gathered = [0] * shard.chunks
        self._updates = [0] * shard.chunks

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
        self._updates[chunk] += 1
        shard.update(chunk, gathered, self._updates[chunk])
        gathered.fill(0)
        self._gathered[chunk] = 0
