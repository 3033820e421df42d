"""How fast a run is, and what it has counted."""

from __future__ import annotations

from typing import Any

from mpidl.engines.totals import Totals
from mpidl.shards.staleness import staleness_statistics

#: Shortest time in seconds over which rates are computed; ranks post their figures ten times a second.
SHORTEST_SPAN = 0.3


class Rates:
    """A run's speed, and what part of their time its servers work.

    Parameters
    ----------
    samples, seconds : float
        What the run had done, and the training time that it had taken, before it was resumed.

    Attributes
    ----------
    values : dict
        samples_per_second and server_load, between the last two moments of `measure`; None before.
    """

    def __init__(self, samples: float, seconds: float) -> None:
        self._samples, self._seconds = samples, seconds
        self._last = Totals(0.0)
        self.values: dict[str, Any] = {"samples_per_second": None, "server_load": None}

    def measure(self, totals: Totals) -> None:
        """Compute the rates since they were last computed, if that was long enough ago."""
        before = self._last
        samples, seconds = totals.samples - before.samples, totals.seconds - before.seconds
        if seconds < SHORTEST_SPAN:
            return
        load = _load(totals, seconds, sum(before.busy_seconds))
        self.values = {"samples_per_second": samples / seconds, "server_load": load}
        self._last = totals

    def end(self, totals: Totals) -> None:
        """Compute the rates of the whole run, which is at its end."""
        seconds = totals.trained_seconds
        if seconds > 0:
            self.values = {"samples_per_second": self.speed(totals), "server_load": _load(totals, seconds)}

    def speed(self, totals: Totals) -> float:
        """Return the samples per second of the whole run, which is at its end."""
        seconds = self._seconds + totals.trained_seconds
        return (self._samples + totals.samples) / seconds if seconds > 0 else 0.0


def _load(totals: Totals, seconds: float, before: float = 0.0) -> float:
    """Return which part of some seconds a server has worked, whose servers had together worked `before` till then."""
    return min(1.0, (sum(totals.busy_seconds) - before) / len(totals.busy_seconds) / seconds)


def counts(totals: Totals) -> dict[str, Any]:
    """Return what a record and the summary say of a run's exchanges."""
    return {
        "staleness": staleness_statistics(totals.staleness, totals.staleness_sum, totals.staleness_max),
        "staleness_histogram": totals.staleness[: min(totals.staleness_max + 1, len(totals.staleness))].tolist(),
        "pushes": totals.pushes,
        "fetches": totals.fetches,
        "bytes_pushed": totals.bytes_pushed,
        "bytes_fetched": totals.bytes_fetched,
        "bytes_moved": totals.bytes_moved,
        "dropped": totals.dropped,
        "timing": totals.timing(),
        "shares": totals.shares(),
    }
