"""The interface between a policy and its shard, and weights of a push by its staleness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from mpidl.shards.state import PushHeader, ShardState

Scale = Callable[[int], float]


def unscaled(staleness: int) -> float:
    """Return 1."""
    return 1.0


def inverse(staleness: int) -> float:
    """Return 1 / max(staleness, 1) (Zhang, Gupta, Lian, Liu 2016, equation 6)."""
    return 1.0 / max(staleness, 1)


def inverse_plus_one(staleness: int) -> float:
    """Return 1 / (staleness + 1) (DynSGD: Hermans 2017; Jiang, Cui, Zhang, Yu 2017)."""
    return 1.0 / (staleness + 1)


class Policy:
    """How a shard handles a push. Every shard has its own instance.

    A push arrives in chunks, and the chunks of several workers' pushes may arrive interleaved. A policy handles one
    chunk at a time and counts separately for each chunk.

    Attributes
    ----------
    awaited : bool
        Whether workers may be waiting for the shard's next update.
    compares : bool
        Whether a push includes the parameters that it was computed at, so that its values have shape (2, size).
    sums : bool
        Whether the sum of several workers' pushes may arrive as one push.
    by_arrival : bool
        Whether the handling of a push depends on when its first chunk arrives, as its staleness does.
    adds_up : bool
        Whether several pushes computed at the same parameters add up to a larger step: then the changes of statistics
        by stale pushes are damped.
    stateless : bool
        Whether it keeps nothing between two chunks; then `state` is empty, and another instance can go on with a shard.
    vectors : int
        Number of vectors like the parameters that it keeps.
    count : int or None
        Pushes of one update, where this is made by their mean; None: all that were accepted since the last one.
    bound : float
        The shard drops pushes with a larger staleness at their first chunk.
    """

    awaited: bool = False
    compares: bool = False
    sums: bool = False
    by_arrival: bool = False
    adds_up: bool = False
    stateless: bool = False
    vectors: int = 0
    count: int | None = 1
    _scale: Scale = staticmethod(unscaled)
    bound: float = math.inf

    def attach(self, shard: ShardState) -> None:
        """Allocate the policy's state for a shard with initial parameters; also called for each copy of a policy."""

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """Handle a chunk of a push; `values` has shape (chunk's size,), or (2, chunk's size) if the policy compares."""
        raise NotImplementedError

    def factor(self, push: PushHeader) -> float:
        """Return the weight of a push that was not dropped, as of `mpidl.rules.Rule.update`; by default 1."""
        return self._scale(push.staleness)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """Finish a push after its last chunk; by default each push advances the shard's clock by 1."""
        shard.clock += 1

    def pass_time(self, shard: ShardState, now: float) -> float:
        """Handle the passage of time between chunks, and return the time of the next call.

        Times are in seconds, by any monotonic clock. At `now` = infinity all waiting ends. The next call is at infinity
        if it depends on a push.
        """
        return math.inf

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        """Expect no more pushes of a worker."""

    def add_worker(self, worker: int) -> None:
        """Expect pushes of a new worker, whose number an earlier one may have had."""

    def expect_all(self) -> None:
        """Expect pushes of all workers again, including those that had left; each continues where it was."""

    def apply_rest(self, shard: ShardState) -> None:
        """Apply all gathered gradients; no more pushes follow."""

    def state(self) -> dict[str, Any]:
        """Return everything that the policy keeps between two chunks, as `ShardState.state` does."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the `state` of another instance.

        It is that of a policy with the same arguments, attached to a shard of the same range and chunk size, with
        vectors on the same device. The number of chunks or of workers may differ if the shard had no open push.
        """


AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


def drop_above(bound: int, policy: AnyPolicy) -> AnyPolicy:
    """Let a policy's shard drop pushes with a staleness above `bound`; return the policy."""
    policy.bound, policy.sums, policy.by_arrival = bound, False, True
    return policy
