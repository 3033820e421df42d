"""What policies share that gather several gradients into one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import ShardState


def for_chunks(counts: np.ndarray, chunks: int) -> np.ndarray:
    """Return what was counted for each chunk, for another number of chunks: at rest all chunks have the same counts."""
    return counts if len(counts) == chunks else np.repeat(counts[:1], chunks, axis=0)


class Gathering(Policy):
    """Keeps a sum of gradients and, for each chunk, the number of gradients in it and of the updates before."""

    def attach(self, shard: ShardState) -> None:
        self._sum = np.zeros_like(shard.parameters)
        self._gathered = [0] * shard.chunks
        self._updates = [0] * shard.chunks

    def _apply(self, shard: ShardState, chunk: int, scale: float = 1.0) -> None:
        """Give the sum of a chunk to the rule, with `scale` times its rate, and begin another."""
        gathered = shard.part(self._sum, chunk)
        self._updates[chunk] += 1
        shard.update(chunk, gathered, self._updates[chunk], scale)
        gathered.fill(0)
        self._gathered[chunk] = 0

    def state(self) -> dict[str, Any]:
        gathered, updates = (np.array(counts, np.int64) for counts in (self._gathered, self._updates))
        return {"sum": self._sum, "gathered": gathered, "updates": updates}

    def load(self, state: Mapping[str, Any]) -> None:
        self._sum[...] = state["sum"]
        chunks = len(self._gathered)
        self._gathered, self._updates = (for_chunks(state[name], chunks).tolist() for name in ("gathered", "updates"))
