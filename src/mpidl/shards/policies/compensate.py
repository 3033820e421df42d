"""Correcting gradients by how far the parameters have moved since a worker fetched them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import PushHeader, ShardState


class _Compensating(Policy):
    """Keeps, for each worker, the parameters as they were when its last push had been applied.

    A worker that fetches right after it pushes gets just these. Its first fetch gets the first values.
    """

    def attach(self, shard: ShardState) -> None:
        """See `Policy.attach`."""
        self._first = shard.parameters.copy()
        self._kept: dict[int, np.ndarray] = {}
        self._scratch = np.empty_like(shard.chunk(0))

    def _moved(self, shard: ShardState, chunk: int, push: PushHeader) -> np.ndarray:
        """Return how far the chunk has moved since the worker's last push; valid until the next call."""
        kept = self._kept.get(push.worker)
        if kept is None:
            kept = self._kept[push.worker] = self._first.copy()
        moved: np.ndarray = self._scratch[: shard.chunk(chunk).size]
        np.subtract(shard.chunk(chunk), shard.part(kept, chunk), out=moved)
        return moved

    def state(self) -> dict[str, Any]:
        """See `Policy.state`."""
        return {"workers/first": self._first} | {f"workers/{worker}": kept for worker, kept in self._kept.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Policy.load`."""
        self._first[...] = state["workers/first"]
        kept = {name.removeprefix("workers/"): values for name, values in state.items()}
        self._kept = {int(name): values.copy() for name, values in kept.items() if name != "first"}

    def _keep(self, shard: ShardState, chunk: int, push: PushHeader) -> None:
        np.copyto(shard.part(self._kept[push.worker], chunk), shard.chunk(chunk))


class DelayCompensated(_Compensating):
    """Give the rule g + variance g g (w - w_fetched), a first-order estimate of the gradient at w.

    Parameters
    ----------
    variance : float
        The paper's lambda.

    References
    ----------
    S. Zheng et al. (2017), Asynchronous stochastic gradient descent with delay compensation.
    """

    def __init__(self, variance: float) -> None:
        self._variance = variance

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        corrected = self._moved(shard, chunk, push)
        corrected *= values
        corrected *= values
        corrected *= self._variance
        corrected += values
        shard.update(chunk, corrected, push.ordinal)
        self._keep(shard, chunk, push)


class DampedChange(_Compensating):
    """Add d / (moved^2 / rate + 1) per coordinate for a worker's change d, if the parameters have moved by `moved`.

    Parameters
    ----------
    rate : float
        The workers' learning rate, the thesis' eta.

    References
    ----------
    J. Hermans (2017), On scalable deep learning and parallelizing gradient descent.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        change = self._moved(shard, chunk, push)
        change *= change
        change /= self._rate
        change += 1
        np.divide(values, change, out=change)
        parameters = shard.chunk(chunk)
        parameters += change
        self._keep(shard, chunk, push)
