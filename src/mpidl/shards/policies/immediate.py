"""Policies that act on each push by itself: apply, correct, add, assign, or drop it."""

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
        self.scale, self.sums, self.by_arrival = scale, scale is unscaled, scale is not unscaled

    def factor(self, push: PushHeader) -> float:
        return self.scale(push.staleness)

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.update(chunk, values, push.ordinal, self.factor(push))


class AddChange(Policy):
    """Add each push, a change made by the worker's own rule; `scale` returns the factor of it for its staleness."""

    stateless = True

    def __init__(self, scale: Scale = unscaled) -> None:
        self.scale, self.by_arrival = scale, scale is not unscaled
        # Scaling damps all changes, those of statistics too.
        self.sums = self.adds_up = scale is unscaled

    def factor(self, push: PushHeader) -> float:
        return self.scale(push.staleness)

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
