"""The training loss of late."""

from __future__ import annotations

from collections import deque

from mpidl.engines.totals import Totals


class RecentLoss:
    """The mean loss over the last epoch of samples or, if that is shorter, over the last seconds.

    Parameters
    ----------
    samples : int
        Samples in an epoch.
    seconds : float
    """

    def __init__(self, samples: int, seconds: float) -> None:
        self._samples, self._seconds = samples, seconds
        # Earlier totals, from the newest on that are old enough.
        self._marks = deque([Totals(0.0)])

    def mark(self, totals: Totals) -> None:
        """Let later means begin at these totals."""
        if totals.samples > self._marks[-1].samples:
            self._marks.append(totals)

    def at(self, totals: Totals) -> float | None:
        """Return the mean at these totals; None if nothing has been computed since the mark that it would begin at."""
        while len(self._marks) > 1 and self._old(self._marks[1], totals):
            self._marks.popleft()
        first = self._marks[0]
        weight = totals.weight - first.weight
        return (totals.loss - first.loss) / weight if weight > 0 else None

    def _old(self, mark: Totals, totals: Totals) -> bool:
        samples, seconds = totals.samples - mark.samples, totals.seconds - mark.seconds
        return samples >= self._samples or (samples > 0 and seconds >= self._seconds)
