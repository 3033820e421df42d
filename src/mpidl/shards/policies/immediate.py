"""Policies that act on each push by itself: apply, correct, add or assign it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.shards.policies.policy import Policy, Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class ApplyAtOnce(Policy):
    """Apply the rule to each push, a gradient, at once; `scale` returns its weight for its staleness."""

    adds_up = stateless = True

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale, self.sums, self.by_arrival = scale, scale is unscaled, scale is not unscaled

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.update(chunk, values, push.ordinal, self.factor(push))


class DecreasingRate(ApplyAtOnce):
    """Apply the rule to each push, a gradient, with the weight k^-exponent, where k counts the pushes from 1."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent, self.sums, self.by_arrival = exponent, False, True

    def factor(self, push: PushHeader) -> float:
        return float(push.ordinal**-self._exponent)


class AddChange(Policy):
    """Add each push, a change made by the worker's own rule; `scale` returns the factor of it for its staleness."""

    stateless = True

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale, self.by_arrival = scale, scale is not unscaled
        # Scaling damps all changes, those of statistics too.
        self.sums = self.adds_up = scale is unscaled

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.add(chunk, values, self.factor(push))


class Assign(Policy):
    """Replace the parameters by each push, such as the mean of all replicas' parameters."""

    stateless = True

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.assign(chunk, values)


class _Compensating(Policy):
    """Base of policies whose pushes include the fetched parameters."""

    compares = adds_up = stateless = True

    def attach(self, shard: ShardState) -> None:
        self._scratch = np.empty_like(shard.chunk(0))

    def _moved(self, shard: ShardState, chunk: int, origin: np.ndarray) -> np.ndarray:
        """Return the chunk's change since it was fetched as `origin`; valid until the next call."""
        moved: np.ndarray = self._scratch[: origin.size]
        np.subtract(shard.chunk(chunk), origin, out=moved)
        return moved


class DelayCompensated(_Compensating):
    """Apply the rule to g + variance g g (w - w_fetched), a first-order estimate of the gradient at w.

    Parameters
    ----------
    variance : float
        The paper's lambda; lambda_0 where `decay` is given.
    decay : float, optional
        Decay of a moving mean of g g, element by element, whose root divides `variance`; the paper's m. By default
        `variance` is constant.

    References
    ----------
    S. Zheng et al. (2017), Asynchronous stochastic gradient descent with delay compensation, equations 10 and 14.
    """

    #: Keeps the root away from 0, as in the paper.
    EPSILON = 1e-7

    def __init__(self, variance: float, decay: float | None = None) -> None:
        self._variance, self._decay, self.stateless = variance, decay, decay is None
        self.vectors = 0 if decay is None else 1

    def attach(self, shard: ShardState) -> None:
        super().attach(shard)
        if self._decay is not None:
            self._mean_square = np.zeros_like(shard.parameters)
            self._root = np.empty_like(self._scratch)

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        gradient, origin = values
        corrected = self._moved(shard, chunk, origin)
        corrected *= gradient
        corrected *= gradient
        if self._decay is not None:
            corrected /= self._next_root(shard, chunk, gradient, self._decay)
        corrected *= self._variance
        corrected += gradient
        shard.update(chunk, corrected, push.ordinal)

    def _next_root(self, shard: ShardState, chunk: int, gradient: np.ndarray, decay: float) -> np.ndarray:
        """Add a gradient to the moving mean of squares, and return the mean's root."""
        mean = shard.part(self._mean_square, chunk)
        root: np.ndarray = self._root[: gradient.size]
        np.multiply(gradient, gradient, out=root)
        root *= 1 - decay
        mean *= decay
        mean += root
        np.add(mean, self.EPSILON, out=root)
        np.sqrt(root, out=root)
        return root

    def state(self) -> dict[str, Any]:
        return {} if self._decay is None else {"mean_square": self._mean_square}

    def load(self, state: Mapping[str, Any]) -> None:
        if self._decay is not None:
            self._mean_square[...] = state["mean_square"]


class DampedChange(_Compensating):
    """Add a worker's change d, scaled down by the distance that the parameters have moved since the worker's fetch.

    Each coordinate gets d / (moved^2 / rate + 1). With `norm` the factor is 1 / (|moved|^2 / rate + 1) for a whole
    chunk of the shard (`mpidl.shards.shard.CHUNK_BYTES`), where |.| is the Euclidean norm. The thesis takes that of the
    whole vector, which no shard knows: the results depend on where shards and chunks begin.

    Parameters
    ----------
    rate : float
        The workers' learning rate, the thesis' eta.

    References
    ----------
    J. Hermans (2017), On scalable deep learning and parallelizing gradient descent.
    """

    def __init__(self, rate: float, norm: bool = False) -> None:
        self._rate, self._norm = rate, norm

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        change, origin = values
        moved = self._moved(shard, chunk, origin)
        rate = self._rate * shard.rate_factor
        if not rate:
            return
        if self._norm:
            np.multiply(change, 1 / (float(moved @ moved) / rate + 1), out=moved)
        else:
            moved *= moved
            moved /= rate
            moved += 1
            np.divide(change, moved, out=moved)
        shard.add(chunk, moved)


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
