"""A rank's running totals, which it posts to the coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.shards.shard import Shard
from mpidl.transport.protocol import SERVER_STATUS


class Status:
    """One rank's status: fill in `figures`, then post `row`.

    `dtype` is `protocol.WORKER_STATUS` or `SERVER_STATUS`. `row`, of shape (1,), has `figures` as its only element.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.row = np.zeros(1, dtype)
        self.figures: Any = self.row[0]


class ShardStatus(Status):
    """The status of the holder of a shard."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(SERVER_STATUS)
        self._shard = shard

    def taken(self) -> np.ndarray:
        """Take the shard's figures and return the row."""
        figures, shard = self.figures, self._shard
        figures["pushes"], figures["dropped"], figures["rate"] = shard.pushes, shard.dropped, shard.last_rate
        figures["staleness"] = shard.staleness.counts
        figures["staleness_sum"], figures["staleness_max"] = shard.staleness.sum, shard.staleness.max
        return self.row
