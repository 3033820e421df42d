"""Policies that gather several gradients into one update of the rule: any gradients, or the first of each step."""

from __future__ import annotations

import math
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


class AccumulateGradients(Gathering):
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
        self.count, self._scale, self.by_arrival = count, scale, scale is not unscaled

    def attach(self, shard: ShardState) -> None:
        super().attach(shard)
        self._factors = [0.0] * shard.chunks

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


class FirstOfStep(Policy):
    """Apply the rule to the mean of the first `count` pushes computed on the current parameters, and drop later ones.

    Workers wait for the update. A step ends at once when all workers that still train have pushed, even if these are
    fewer than `count`. With a grace window, pushes that begin to arrive before its end join the first `count`, each as
    a whole or not at all; without one, every chunk is counted separately.

    Parameters
    ----------
    count : int
        Pushes of one update, the first paper's N and the second one's minimum quorum.
    workers : int
        Number of workers.
    grace : float
        Seconds during which others may join after `count` pushes have arrived.

    References
    ----------
    J. Chen et al. (2016), Revisiting distributed synchronous SGD, algorithm 4.
    A. Douillard et al. (2026), Decoupled DiLoCo for resilient distributed pre-training: minimum quorum, grace window.
    """

    awaited = True
    vectors = 1
    count = None

    def __init__(self, count: int, workers: int, grace: float = 0.0) -> None:
        self._count, self._workers, self._grace = count, workers, grace
        # A step whose grace window is over still waits for a push that has begun to arrive.
        self.by_arrival = grace > 0

    def attach(self, shard: ShardState) -> None:
        self._active = set(range(self._workers))
        self._sum = np.zeros_like(shard.parameters)
        # Gradients in the sum of each chunk, and the active workers that they are from.
        self._given = [0] * shard.chunks
        self._givers: list[set[int]] = [set() for _ in range(shard.chunks)]
        self._clocks = [shard.clock] * shard.chunks
        self._taken: dict[int, int] = {}
        # End of the grace window, None before its start; and whether it has passed.
        self._end: float | None = None
        self._ended = False

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        if push.fetched != self._clocks[chunk] or (self._ended and push.worker not in self._taken):
            return
        self._taken[push.worker] = self._taken.get(push.worker, 0) + 1
        gathered = shard.part(self._sum, chunk)
        gathered += values
        self._given[chunk] += 1
        self._givers[chunk].add(push.worker)
        self._apply_if_complete(shard, chunk)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """Count the push as dropped if no chunk of it was used; the clock counts steps instead of pushes."""
        if not self._taken.pop(push.worker, 0):
            shard.drop(push)

    def pass_time(self, shard: ShardState, now: float) -> float:
        """End a step after its grace window, once no push to it is open."""
        # A worker's chunks arrive from the last to the first, so chunk 0 is the last of its push.
        if not self._grace or self._given[0] < self._count:
            return math.inf
        if self._end is None:
            self._end = now + self._grace
        if now < self._end:
            return self._end
        self._ended = True
        if not self._taken:
            for chunk, given in enumerate(self._given):
                if given:
                    self._apply(shard, chunk)
        return math.inf

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        self._active.discard(worker)
        for chunk, given in enumerate(self._given):
            if given:
                self._apply_if_complete(shard, chunk)

    def add_worker(self, worker: int) -> None:
        """Expect pushes of a new worker; gradients of an earlier one with its number stay in the open step."""
        self._active.add(worker)
        for givers in self._givers:
            givers.discard(worker)

    def expect_all(self) -> None:
        self._active = set(range(self._workers))

    def _apply_if_complete(self, shard: ShardState, chunk: int) -> None:
        enough = self._given[chunk] >= self._count and not self._grace
        if enough or self._active <= self._givers[chunk]:
            self._apply(shard, chunk)

    def _apply(self, shard: ShardState, chunk: int) -> None:
        gathered = shard.part(self._sum, chunk)
        gathered /= self._given[chunk]
        self._clocks[chunk] += 1
        shard.update(chunk, gathered, self._clocks[chunk])
        gathered.fill(0)
        self._given[chunk] = 0
        self._givers[chunk].clear()
        if (clock := min(self._clocks)) != shard.clock:
            shard.clock, self._end, self._ended = clock, None, False

    def state(self) -> dict[str, Any]:
        workers = range(self._workers)
        return {
            "sum": self._sum,
            "active": np.array([worker in self._active for worker in workers], np.int64),
            "given": np.array(self._given, np.int64),
            "givers": np.array([[worker in givers for worker in workers] for givers in self._givers], np.int64),
            "clocks": np.array(self._clocks, np.int64),
            "taken": np.array([self._taken.get(worker, 0) for worker in workers], np.int64),
            "ended": np.array(self._ended, np.int64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the state of another instance, and start an open grace window again."""
        self._end, self._ended = None, bool(state["ended"])
        self._sum[...] = state["sum"]
        chunks = len(self._clocks)
        self._given = for_chunks(state["given"], chunks).tolist()
        givers = for_chunks(state["givers"], chunks)
        self._givers = [set(np.flatnonzero(each[: self._workers]).tolist()) for each in givers]
        self._clocks = for_chunks(state["clocks"], chunks).tolist()
        self._active = set(np.flatnonzero(state["active"][: self._workers]).tolist())
        self._taken = {worker: taken for worker, taken in enumerate(state["taken"].tolist()) if taken}
