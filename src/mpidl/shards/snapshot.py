"""Snapshots of a shard between pushes, taken without stopping the workers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mpidl.shards.shard import Shard


class Snapshot:
    """A copy of a shard with each worker's pushes up to the worker's mark and none after it.

    The copy is taken at the first mark (K. M. Chandy, L. Lamport 1985, Distributed snapshots: determining global states
    of distributed systems). What other workers push before their marks is applied to the shard and to the copy. The
    copy's time stands still until all have marked, and then runs out: steps with enough pushes are over in the copies
    of all shards, whenever they end on the shards.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._awaited: set[int] = set()
        # Kept for the next snapshot: allocating this memory takes longer than filling it.
        self._copy: Shard | None = None

    @property
    def copy(self) -> Shard:
        """The copy that was taken last."""
        assert self._copy is not None, "no snapshot has begun"
        return self._copy

    @property
    def complete(self) -> bool:
        """Whether every worker has made its mark."""
        return not self._awaited

    def begin(self, workers: Iterable[int]) -> None:
        """Copy the shard, and await the marks of workers; an incomplete copy is abandoned."""
        self._awaited = set(workers)
        if self._copy is None:
            self._copy = self._shard.copy()
        else:
            self._copy.load(self._shard.state())
        self._end_if_complete()

    def mark(self, worker: int) -> None:
        """Accept no more pushes of a worker."""
        if worker in self._awaited:
            self._awaited.discard(worker)
            self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self.complete:
            self.copy.pass_time(math.inf)

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: np.ndarray, portions: tuple[int, int]
    ) -> None:
        """Apply a chunk that the shard has received to the copy, if the worker has not made its mark."""
        if worker in self._awaited:
            self.copy.receive_chunk(worker, chunk, fetched, values, portions)
