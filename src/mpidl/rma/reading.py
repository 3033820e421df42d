"""Reading shards and their clocks from the ranks that show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.rma.verbs import RemoteMemory


class Holder(NamedTuple):
    """Where a shard is read: the rank that shows it, and the shard's number."""

    rank: int
    shard: int


class ShardReader:
    """Reads all shards of a slice of the vector, side by side.

    Parameters
    ----------
    window : RemoteMemory
    holders : sequence of Holder
        For each shard.
    parts : sequence of slice
        The shard of each in the slice.
    """

    def __init__(self, window: RemoteMemory, holders: Sequence[Holder], parts: Sequence[slice]) -> None:
        self._window, self._holders, self._parts = window, holders, parts
        self._ranks = list(dict.fromkeys(holder.rank for holder in holders))

    def start_clocks(self, clocks: np.ndarray) -> None:
        """Start reading the `protocol.ShardClock` of every shard into an int64 array (shards, len(ShardClock))."""
        for (rank, shard), row in zip(self._holders, clocks, strict=True):
            self._window.get(row, rank, f"clock/{shard}")

    def start(self, parameters: Any) -> None:
        """Start reading all shards into a vector, after what has been started before."""
        for rank in self._ranks:
            self._window.order(rank)
        for (rank, shard), part in zip(self._holders, self._parts, strict=True):
            self._window.get(parameters[part], rank, f"parameters/{shard}")

    def finish(self) -> None:
        """Wait until all that has been started has arrived."""
        for rank in self._ranks:
            self._window.flush(rank)
