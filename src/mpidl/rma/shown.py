"""Shards that a rank which doesn't hold them shows to others, with their clocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpidl.rma.fetches import regions
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.protocol import ShardClock

#: Plain integers, which index arrays faster than an enumeration's.
CLOCK, CUT = int(ShardClock.CLOCK), int(ShardClock.CUT)


class ShownShards:
    """All shards in a rank's memory, where others read them as they do at servers.

    `parts` has the place of each shard in the flat vector.
    """

    def __init__(self, window: RemoteMemory, parts: Sequence[slice]) -> None:
        self._window, self._parts = window, parts
        names = [regions(shard) for shard in range(len(parts))]
        self._values = [window.local(values) for values, _ in names]
        self._clocks = [window.local(clock) for _, clock in names]

    def show(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """Show the whole vector, and each shard's `protocol.ShardClock`, a row of `clocks`.

        A reader that sees a clock finds the parameters of that clock, or later ones.
        """
        for shown, row in zip(self._clocks, clocks, strict=True):
            shown[CUT] = row[CUT]
        self._window.sync()
        for values, part in zip(self._values, self._parts, strict=True):
            np.copyto(values, parameters[part])
        self._window.sync()
        for shown, row in zip(self._clocks, clocks, strict=True):
            shown[CLOCK] = row[CLOCK]
        self._window.sync()
