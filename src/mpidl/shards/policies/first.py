"""Taking the first gradients of each step and dropping the rest."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import PushHeader, ShardState


class FirstOfStep(Policy):
    """Give the rule the mean of the first `count` gradients computed on the present parameters; drop late ones.

    Workers wait for the update that follows. A step for which too few still train has what all of them give.

    Parameters
    ----------
    count : int
        Gradients of one update, the paper's N.
    workers : int
        How many there are.

    References
    ----------
    J. Chen et al. (2016), Revisiting distributed synchronous SGD, algorithm 4.
    """

    awaited: ClassVar[bool] = True

    def __init__(self, count: int, workers: int) -> None:
        self._count, self._active = count, set(range(workers))

    def attach(self, shard: ShardState) -> None:
        """See `Policy.attach`."""
        self._sum = np.zeros_like(shard.parameters)
        self._givers: list[set[int]] = [set() for _ in range(shard.chunks)]
        self._clocks = [shard.clock] * shard.chunks
        self._taken: dict[int, int] = {}

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        if push.fetched != self._clocks[chunk]:
            return
        self._taken[push.worker] = self._taken.get(push.worker, 0) + 1
        gathered = shard.part(self._sum, chunk)
        gathered += values
        self._givers[chunk].add(push.worker)
        self._apply_if_complete(shard, chunk)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """See `Policy.end_push`: the clock counts steps."""
        if not self._taken.pop(push.worker, 0):
            shard.drop(push)

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        """See `Policy.remove_worker`."""
        self._active.discard(worker)
        for chunk, givers in enumerate(self._givers):
            if givers:
                self._apply_if_complete(shard, chunk)

    def _apply_if_complete(self, shard: ShardState, chunk: int) -> None:
        givers = self._givers[chunk]
        if len(givers) < self._count and not self._active <= givers:
            return
        gathered = shard.part(self._sum, chunk)
        gathered /= len(givers)
        self._clocks[chunk] += 1
        shard.update(chunk, gathered, self._clocks[chunk])
        gathered.fill(0)
        givers.clear()
        shard.clock = min(self._clocks)
