"""The interface between a policy and the shard that it acts on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.shards.state import PushHeader, ShardState


class Policy:
    """What a shard does with a push. Every shard has an instance of its own.

    A push arrives in chunks, and the chunks of several workers' pushes may arrive interleaved. A policy acts on one
    chunk at a time and keeps its counts for each chunk.

    Attributes
    ----------
    awaited : bool
        Whether workers may be waiting for the shard's next update.
    compares : bool
        Whether a push brings the parameters that it was computed at, so that its values have shape (2, size).
    sums : bool
        Whether the sum of several workers' pushes may come as one push.
    by_staleness : bool
        Whether what is done with a push depends on how stale it is when it begins to arrive.
    adds_up : bool
        Whether pushes that were computed at the same parameters may move these several times as far as each of them:
        then what stale ones change of statistics is damped.
    """

    awaited: bool = False
    compares: bool = False
    sums: bool = False
    by_staleness: bool = False
    adds_up: bool = False

    def attach(self, shard: ShardState) -> None:
        """Allocate what the policy keeps; the shard's parameters have their first values. A copy is attached anew."""

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """Act on one chunk of a push.

        `values` has shape (chunk's size,), or (2, chunk's size) if the policy compares.
        """
        raise NotImplementedError

    def takes(self, staleness: int) -> bool:
        """Tell whether a push that is so stale when it begins to arrive counts as an update of the rule."""
        return True

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """Act on a push that has been applied whole; by default each push is one update of the shard's clock."""
        shard.clock += 1

    def look(self, shard: ShardState, now: float) -> float:
        """Act on the time, as whoever drives the shard does between two chunks.

        Parameters
        ----------
        shard : ShardState
        now : float
            Seconds, by any clock that never goes back. Infinity: no time is left.

        Returns
        -------
        float
            When the next call is due, by the same clock; infinity if a push must come before.
        """
        return math.inf

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        """Expect no more pushes of a worker."""

    def add_worker(self, worker: int) -> None:
        """Expect pushes of a worker that begins anew: whoever had its number before may have pushed, it has not."""

    def expect_all(self) -> None:
        """Expect pushes of all workers again, also of those that had left; each goes on where it was."""

    def apply_rest(self, shard: ShardState) -> None:
        """Apply what has been gathered; no more pushes follow."""

    def state(self) -> dict[str, Any]:
        """Return all that the policy keeps between two chunks, as `ShardState.state` does."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where another instance was when its `state` was taken.

        Parameters
        ----------
        state : mapping of str to array
            The state of a policy with the same arguments, attached to a shard of the same range and chunk. It is
            copied; its vectors lie where those of this policy's shard do. The number of chunks or of workers may differ
            if the shard was at rest.
        """
