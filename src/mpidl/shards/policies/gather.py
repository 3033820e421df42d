"""Gathering the pushes of any workers into one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.policies.gathering import Gathering, for_chunks
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class Gather(Gathering):
    """Give the rule the mean of every `count` gradients, from whichever workers, each with a rate of its own.

    The rule gets the mean of the gradients weighted by their rates, and the mean of the rates. For plain SGD that is
    the sum of each gradient times its rate; the state of rules such as Adagrad sees gradients of full size.

    Parameters
    ----------
    count : int
        Gradients of one update, the paper's c.
    scale : callable
        Takes a gradient's staleness and returns the factor of its rate.

    References
    ----------
    W. Zhang, S. Gupta, X. Lian, J. Liu (2016), Staleness-aware async-SGD for distributed deep learning: n-softsync.
    """

    adds_up = True
    _adding = Sgd()

    def __init__(self, count: int, scale: Scale = unscaled) -> None:
        self._count, self._scale, self.by_staleness = count, scale, scale is not unscaled

    def attach(self, shard: ShardState) -> None:
        super().attach(shard)
        self._factors = [0.0] * shard.chunks

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        factor = self._scale(push.staleness)
        self._adding.update(shard.part(self._sum, chunk), (), values, 1, -factor)
        self._factors[chunk] += factor
        self._gathered[chunk] += 1
        if self._gathered[chunk] >= self._count:
            self._apply_mean(shard, chunk)

    def apply_rest(self, shard: ShardState) -> None:
        """See `Policy.apply_rest`: the last few gradients are an update, each with the rate it would have had."""
        for chunk, gathered in enumerate(self._gathered):
            if gathered:
                self._apply_mean(shard, chunk)

    def _apply_mean(self, shard: ShardState, chunk: int) -> None:
        gathered = shard.part(self._sum, chunk)
        gathered /= self._factors[chunk]
        self._apply(shard, chunk, self._factors[chunk] / self._count)
        self._factors[chunk] = 0.0

    def state(self) -> dict[str, Any]:
        # Counters are integers: these have the bits of the factors.
        return super().state() | {"factors": np.array(self._factors, np.float64).view(np.int64)}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        factors = for_chunks(state["factors"], len(self._factors))
        self._factors = np.ascontiguousarray(factors).view(np.float64).tolist()

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """See `Policy.end_push`: the clock counts updates, not pushes."""
        if not self._gathered[0]:
            shard.clock += 1
