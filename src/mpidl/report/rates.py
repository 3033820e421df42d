"""A run's speed, its servers' load, its counts and its recent training loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mpidl.engines.totals import Totals, timing

#: Shortest time in seconds over which rates are computed first; ranks post their figures ten times a second.
SHORTEST_SPAN = 0.3
#: Time in seconds over which they are computed later, unless reports are more frequent.
SPAN = 5.0

#: Marks of a recent loss that its state has.
MARKS = 16


class Rates:
    """A run's speed, and the fraction of their time that its servers work, between two moments with new samples.

    `samples` and `seconds` are those of the run before it was resumed, `report` the seconds between two reports.
    """

    def __init__(self, samples: float, seconds: float, report: float = SPAN) -> None:
        self._samples, self._seconds = samples, seconds
        self._span = max(SHORTEST_SPAN, min(SPAN, report))
        self._grown = self._seen = 0
        # Samples, seconds of training and seconds that servers had worked, at the last measurement.
        self._last: tuple[int, float, float] = 0, 0.0, 0.0
        self.values: dict[str, Any] = {"samples_per_second": None, "server_load": None}

    def measure(self, totals: Totals) -> None:
        """Compute the rates since the last measurement, if that was long enough ago."""
        samples, before, busy = self._last
        seconds = totals.seconds - before
        known, grown = self.values["samples_per_second"], totals.samples - samples
        new, self._seen = totals.samples > self._seen, totals.samples
        if seconds < (SHORTEST_SPAN if known is None else self._span):
            return
        if not new:
            # A batch may take longer than any span; after as long as the last ones took, speed falls.
            if known is not None and not grown:
                self.values = self.values | {"samples_per_second": min(known, self._grown / seconds)}
            return
        self._grown, load = grown, _load(totals, seconds, busy)
        self.values = {"samples_per_second": grown / seconds, "server_load": load}
        self._last = totals.samples, totals.seconds, sum(totals.spent.busy_seconds)

    def state(self) -> dict[str, Any]:
        """Return the state for resuming."""
        return {"last": self._last, "grown": self._grown, "values": self.values}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state` of another."""
        self._last, self._grown, self.values = tuple(state["last"]), state["grown"], dict(state["values"])

    def end(self, totals: Totals) -> None:
        """Compute the rates of the whole run at its end."""
        seconds = totals.trained_seconds
        if seconds > 0:
            self.values = {"samples_per_second": self.speed(totals), "server_load": _load(totals, seconds)}

    def speed(self, totals: Totals) -> float:
        """Return the samples per second of the whole run at its end."""
        seconds = self._seconds + totals.trained_seconds
        return (self._samples + totals.samples) / seconds if seconds > 0 else 0.0


def _load(totals: Totals, seconds: float, before: float = 0.0) -> float:
    """Return the servers' mean load over the last `seconds`; they had worked for `before` seconds in total before."""
    return min(1.0, (sum(totals.spent.busy_seconds) - before) / len(totals.spent.busy_seconds) / seconds)


def counts(totals: Totals) -> dict[str, Any]:
    """Return the items of a record and of the summary about a run's exchanges."""
    spent = totals.spent
    return {
        "staleness": totals.staleness.statistics(),
        "staleness_histogram": totals.staleness.counts[: totals.staleness.max + 1].tolist(),
        "pushes": totals.pushes,
        "fetches": totals.fetches,
        "bytes_pushed": totals.bytes_pushed,
        "bytes_fetched": totals.bytes_fetched,
        "bytes_moved": totals.bytes_moved,
        "dropped": totals.shards.dropped,
        **({"gradients_stopped": spent.stopped, "seconds_saved": spent.saved_seconds} if spent.stopped else {}),
        **totals.shards.side_figures,
        "timing": timing(totals),
        "shares": totals.spent.shares(totals.trained_seconds),
    }


class _Mark(NamedTuple):
    samples: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    weight: float = 0.0


class RecentLoss:
    """The mean loss over the last epoch of samples or, if that is shorter, over the last seconds.

    Parameters
    ----------
    samples : int
        Samples in an epoch.
    """

    def __init__(self, samples: int, seconds: float) -> None:
        self._samples, self._seconds = samples, seconds
        # The newest totals that are old enough, and those after them.
        self._marks = deque([_Mark()])

    def state(self) -> Sequence[tuple[float, ...]]:
        """Return the state for resuming: some of the moments at which later means may begin."""
        marks = list(self._marks)
        return marks[:: -(-len(marks) // MARKS)]

    def load(self, state: Any) -> None:
        """Resume from the `state` of another."""
        self._marks = deque(msgspec.convert(state, list[_Mark]))

    def mark(self, totals: Totals) -> None:
        """Allow later means to begin at these totals."""
        if totals.samples > self._marks[-1].samples:
            self._marks.append(_Mark(totals.samples, totals.seconds, totals.loss, totals.weight))

    def at(self, totals: Totals) -> float | None:
        """Return the mean at these totals; None if nothing has been computed since its beginning."""
        while len(self._marks) > 1 and self._old(self._marks[1], totals):
            self._marks.popleft()
        first = self._marks[0]
        weight = totals.weight - first.weight
        return (totals.loss - first.loss) / weight if weight > 0 else None

    def _old(self, mark: _Mark, totals: Totals) -> bool:
        samples, seconds = totals.samples - mark.samples, totals.seconds - mark.seconds
        return samples >= self._samples or (samples > 0 and seconds >= self._seconds)


def means(logged: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the means of what replicas have logged since something `before`, as "logged", if there is anything."""
    found = {}
    for name, (total, count) in logged.items():
        earlier, number = before.get(name, (0.0, 0))
        if count > number:
            found[name] = (total - earlier) / (count - number)
    return {"logged": found} if found else {}
