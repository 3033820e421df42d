"""Tearing: how many updates servers complete while a worker fetches."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.transport.interface.worker import WorkerLink
from mpidl.transport.protocol import ShardClock

#: One in so many fetches has its tearing counted: that is one more read of every server's clock, as many round trips
#: as a fetch begins with.
SAMPLED = 100


class Tearing:
    """Counts the tearing of some of a worker's fetches.

    Parameters
    ----------
    shards : int
        Number of shards that a fetch reads.
    figures : mapping
        The worker's status, with the sums.
    """

    def __init__(self, shards: int, figures: Any) -> None:
        self._figures, self._fetches = figures, 0
        self._arrived = np.empty((shards, len(ShardClock)), np.int64)

    @property
    def due(self) -> bool:
        """Whether the tearing of the next fetch is counted."""
        return self._fetches % SAMPLED == 0

    def started(self, link: WorkerLink, clocks: np.ndarray) -> None:
        """Note a fetch that has started; if its tearing is counted, wait for it.

        Parameters
        ----------
        link : WorkerLink
        clocks : array (shards, len(ShardClock)) of int64
            The clocks that were read before the parameters.
        """
        if self.due:
            link.finish_fetch()
            link.read_clocks(self._arrived)
            # The updates that any one shard has completed since.
            tearing = int((self._arrived - clocks)[:, ShardClock.CLOCK].max(initial=0))
            self._figures["sampled_fetches"] += 1
            self._figures["tearing_sum"] += tearing
            self._figures["tearing_max"] = max(self._figures["tearing_max"], tearing)
        self._fetches += 1
