"""Reading shards and their clocks from the ranks that show them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.protocol import ShardClock
from mpidl.transport.routes import Holder


def regions(shard: int) -> tuple[str, str]:
    """Return the names of the window regions of a shard's parameters and of its clock."""
    return f"parameters/{shard}", f"clock/{shard}"


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
        self._regions = [regions(holder.shard) for holder in holders]
        self._ranks = list(dict.fromkeys(holder.rank for holder in holders))
        # Return whether shards that `all_newer` waits for have been updated.
        self._awaited: list[Callable[[], bool]] = []

    def start_clocks(self, clocks: np.ndarray, without: Collection[int] = ()) -> None:
        """Start reading the `protocol.ShardClock` of all shards but some into an int64 array, a row for each."""
        for number, (rank, _) in enumerate(self._holders):
            if number not in without:
                self._window.get(clocks[number], rank, self._regions[number][1])

    def all_newer(self, clocks: np.ndarray) -> bool:
        """Return whether all shards have been updated since these clocks were read; call it until it returns True."""
        if not self._awaited:
            known = clocks[:, ShardClock.CLOCK].tolist()
            self._awaited = [
                self._window.watch(holder.rank, region, ShardClock.CLOCK, clock + 1)
                for holder, (_, region), clock in zip(self._holders, self._regions, known, strict=True)
            ]
        while self._awaited and self._awaited[-1]():
            self._awaited.pop()
        return not self._awaited

    def start(self, parameters: Any, without: Collection[int] = ()) -> None:
        """Start reading all shards but some into a vector, after earlier reads."""
        for rank in self._ranks:
            self._window.fence(rank)
        for number, (rank, _) in enumerate(self._holders):
            if number not in without:
                self._window.get(parameters[self._parts[number]], rank, self._regions[number][0])

    def finish(self) -> None:
        """Wait until all reads have arrived."""
        for rank in self._ranks:
            self._window.flush(rank)
