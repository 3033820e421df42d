"""Staleness: how many updates a shard applied between a worker's fetch and the arrival of its push."""

from __future__ import annotations

import numpy as np

#: Counts are kept exactly for staleness below this; larger ones share the last bin, their sum and maximum stay exact.
BINS = 1024


class Histogram:
    """Counts of staleness, updated where pushes are applied."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.sum = 0
        self.max = 0

    def add(self, staleness: int) -> None:
        """Count one push."""
        self.counts[min(staleness, BINS - 1)] += 1
        self.sum += staleness
        if staleness > self.max:
            self.max = staleness
