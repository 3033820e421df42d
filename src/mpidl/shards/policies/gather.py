"""Policies that gather several gradients into one update of the rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.policies.policy import Policy, Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


def for_chunks(counts: np.ndarray, chunks: int) -> np.ndarray:
    """Return counts for another number of chunks: without open pushes, all chunks have the same counts."""
    return counts if len(counts) == chunks else np.repeat(counts[:1], chunks, axis=0)


class Gathering(Policy):
    """A sum of gradients and, for each chunk, the number of gradients in it and of earlier updates."""

    vectors = 1

    def attach(self, shard: ShardState) -> None:
        self._sum = np.zeros_like(shard.parameters)
        self._gathered = [0] * shard.chunks
        self._updates = [0] * shard.chunks

    def _apply(self, shard: ShardState, chunk: int, weight: float = 1.0) -> None:
        """Apply the rule to the sum of a chunk, with this weight, and start another sum."""
        gathered = shard.part(self._sum, chunk)
        self._updates[chunk] += 1
        shard.update(chunk, gathered, self._updates[chunk], weight)
        gathered.fill(0)
        self._gathered[chunk] = 0

    def state(self) -> dict[str, Any]:
        gathered, updates = (np.array(counts, np.int64) for counts in (self._gathered, self._updates))
        return {"sum": self._sum, "gathered": gathered, "updates": updates}

    def load(self, state: Mapping[str, Any]) -> None:
        self._sum[...] = state["sum"]
        chunks = len(self._gathered)
        self._gathered, self._updates = (for_chunks(state[name], chunks).tolist() for name in ("gathered", "updates"))


class Gather(Gathering):
    """Apply the rule to the mean of every `count` gradients, from any workers, each with its own weight.

    The rule gets the weighted mean of the gradients, and the mean of the weights as its weight. With plain SGD or
    momentum that is the sum of each gradient times its weight; means of squares are of gradients of full size.

    Parameters
    ----------
    count : int
        Gradients of one update, the paper's c.
    scale : callable
        Returns a gradient's weight for its staleness.

    References
    ----------
    W. Zhang, S. Gupta, X. Lian, J. Liu (2016), Staleness-aware async-SGD for distributed deep learning: n-softsync.
    """

    adds_up = True
    count: int
    _adding = Sgd()

    def __init__(self, count: int, scale: Scale = unscaled) -> None:
        self.count, self.scale, self.by_arrival = count, scale, scale is not unscaled

    def attach(self, shard: ShardState) -> None:
        super().attach(shard)
        self._factors = [0.0] * shard.chunks

    def factor(self, push: PushHeader) -> float:
        return self.scale(push.staleness)

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        factor = self.factor(push)
        self._adding.update(shard.part(self._sum, chunk), (), values, 1, -factor)
        self._factors[chunk] += factor
        self._gathered[chunk] += 1
        if self._gathered[chunk] >= self.count:
            self._apply_mean(shard, chunk)

    def apply_rest(self, shard: ShardState) -> None:
        """Apply the last few gradients as one update, each with its usual weight."""
        for chunk, gathered in enumerate(self._gathered):
            if gathered:
                self._apply_mean(shard, chunk)

    def _apply_mean(self, shard: ShardState, chunk: int) -> None:
        gathered = shard.part(self._sum, chunk)
        gathered /= self._factors[chunk]
        self._apply(shard, chunk, self._factors[chunk] / self.count)
        self._factors[chunk] = 0.0

    def state(self) -> dict[str, Any]:
        # Counters are integers, so the factors are stored by their bits.
        return super().state() | {"factors": np.array(self._factors, np.float64).view(np.int64)}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        factors = for_chunks(state["factors"], len(self._factors))
        self._factors = np.ascontiguousarray(factors).view(np.float64).tolist()

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """Advance the clock by 1 per update instead of per push."""
        if not self._gathered[0]:
            shard.clock += 1


class DelayedNesterov(Gathering):
    """Nesterov's momentum for asynchronous pushes: apply each gradient with weight 1 / count, momentum every `count`.

    The shard's rule is Nesterov. At the last of `count` gradients, the steps by the others are taken back, and the rule
    is applied to the mean of all.

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
