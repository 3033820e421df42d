"""Layers divided into stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mpidl.parameters.ranges import Range


def balanced(weights: Sequence[float], parts: int) -> list[Range]:
    """Divide items into consecutive non-empty runs of which the heaviest is as light as can be.

    Among such divisions, the sum of the squares of the runs' weights is the least.

    Parameters
    ----------
    weights
        One for each item, at least as many as there are parts.
    parts
        Number of runs.
    """
    sums = [0, *accumulate(weights)]
    count = len(weights)
    # best[stop]: the heaviest run, the sum of squares and the runs of the best division of the first `stop` items.
    best = {stop: (sums[stop], sums[stop] ** 2, [Range(0, stop)]) for stop in range(1, count + 1)}
    for part in range(1, parts):
        best = {
            stop: min(
                (
                    max(heaviest, sums[stop] - sums[start]),
                    squares + (sums[stop] - sums[start]) ** 2,
                    [*runs, Range(start, stop)],
                )
                for start, (heaviest, squares, runs) in best.items()
                if start < stop
            )
            for stop in range(part + 1, count + 1)
        }
    return best[count][2]
