"""Staleness: the number of updates that a shard applied between a worker's fetch and the arrival of its push."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import numpy as np

#: Number of bins; the last one is shared by all larger values, of which the sum and maximum are still exact.
BINS = 1024


class Staleness(TypedDict):
    """The staleness of pushes, in updates of a shard; all are 0 without pushes.

    Attributes
    ----------
    mean : float
    p50, p99 : int
        The least value that at least that share of the pushes doesn't exceed, or the maximum in the last bin.
    max : int
    """

    mean: float
    p50: int
    p99: int
    max: int


class Histogram:
    """Counts of the staleness of pushes.

    Attributes
    ----------
    counts : array of int64, shape (BINS,)
        ``counts[s]`` pushes had staleness s; the last element also counts all larger ones.
    sum, max : int
        Exact sum and largest of all values.
    """

    def __init__(self, counts: np.ndarray | None = None, sum: int = 0, max: int = 0) -> None:
        self.counts = np.zeros(BINS, np.int64) if counts is None else counts
        self.sum, self.max = sum, max

    @classmethod
    def total(cls, histograms: Iterable[Histogram]) -> Histogram:
        """Return a histogram of the values in several."""
        found = cls()
        for each in histograms:
            found.counts += each.counts
            found.sum += each.sum
            found.max = max(found.max, each.max)
        return found

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Histogram:
        """Return a histogram with this `state`."""
        found = cls()
        found.load(state)
        return found

    def state(self) -> dict[str, np.ndarray]:
        """Return the counts, their sum and maximum, of int64, as a part of `ShardState.state`."""
        return {"counts": self.counts, "sum": np.array(self.sum), "max": np.array(self.max)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the `state` of another histogram."""
        self.counts[...] = state["counts"]
        self.sum, self.max = int(state["sum"]), int(state["max"])

    def add(self, staleness: int) -> None:
        """Count one push."""
        self.counts[min(staleness, BINS - 1)] += 1
        self.sum += staleness
        if staleness > self.max:
            self.max = staleness

    def statistics(self) -> Staleness:
        """Return mean, percentiles and maximum."""
        cumulative = np.cumsum(self.counts)
        pushes = int(cumulative[-1])
        if pushes == 0:
            return {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}
        p50, p99 = (int(np.searchsorted(100 * cumulative[:-1], percent * pushes)) for percent in (50, 99))
        exact = len(self.counts) - 1
        return {
            "mean": self.sum / pushes,
            "p50": p50 if p50 < exact else self.max,
            "p99": p99 if p99 < exact else self.max,
            "max": self.max,
        }
