"""A policy that gives all workers the same share of the progress, whatever their speeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.shards.policies.immediate import ApplyAtOnce
from mpidl.shards.state import PushHeader, ShardState


class RescaledRate(ApplyAtOnce):
    """Apply the rule to each push at once, with the weight tau / mean(tau), tau being its worker's time for a push.

    The time between two pushes of a worker is counted in pushes of all workers, and averaged; a worker's first push
    counts as `workers`, which is the time if all are equally fast. The mean is over the workers that have pushed, so
    that no push counts more than `workers` times, even that of a worker that returns after a pause.

    Parameters
    ----------
    workers : int
        Number of workers.

    References
    ----------
    A. Mahran, A. Maranjyan, P. Richtarik (2026), Rescaled asynchronous SGD: optimal distributed optimization under data
    and system heterogeneity: rates in proportion to the computing times, here known from the pushes themselves.
    """

    #: Number of pushes of a worker over which its time is averaged: over all at first, by a moving mean later.
    HORIZON = 20

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.sums, self.by_arrival, self.stateless, self._workers = False, True, False, workers

    def attach(self, shard: ShardState) -> None:
        self._pushes, self._last = [0] * self._workers, [0] * self._workers
        self._times, self._factors = [float(self._workers)] * self._workers, [1.0] * self._workers

    def factor(self, push: PushHeader) -> float:
        if self._last[push.worker] != push.ordinal:
            self._factors[push.worker] = self._next_factor(push.worker, push.ordinal)
        return self._factors[push.worker]

    def _next_factor(self, worker: int, ordinal: int) -> float:
        """Count a push of a worker, and return its weight."""
        if pushes := self._pushes[worker]:
            time = ordinal - self._last[worker]
            self._times[worker] += (time - self._times[worker]) / min(pushes, self.HORIZON)
        self._pushes[worker], self._last[worker] = pushes + 1, ordinal
        times = [time for time, pushes in zip(self._times, self._pushes, strict=True) if pushes]
        return self._times[worker] * len(times) / sum(times)

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        self._forget(worker)

    def add_worker(self, worker: int) -> None:
        self._forget(worker)

    def _forget(self, worker: int) -> None:
        self._pushes[worker], self._times[worker] = 0, float(self._workers)

    def state(self) -> dict[str, Any]:
        # Counters are integers, so the times and factors are stored by their bits.
        floats = (np.array(each, np.float64).view(np.int64) for each in (self._times, self._factors))
        integers = (np.array(each, np.int64) for each in (self._pushes, self._last))
        return dict(zip(("times", "factors", "pushes", "last"), (*floats, *integers), strict=True))

    def load(self, state: Mapping[str, Any]) -> None:
        kept = min(len(state["pushes"]), self._workers)
        times, factors = (state[name].view(np.float64).tolist() for name in ("times", "factors"))
        self._times[:kept], self._factors[:kept] = times[:kept], factors[:kept]
        self._pushes[:kept], self._last[:kept] = (state[name].tolist()[:kept] for name in ("pushes", "last"))
