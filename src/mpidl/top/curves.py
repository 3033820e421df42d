"""Curves and bars of characters."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite, log

import numpy as np

#: Characters of increasing height, and the same where a terminal has ASCII only.
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
#: Ratio of the largest to the smallest value from which a curve is drawn in logarithms.
LOGARITHMIC = 20.0


def curve(points: Sequence[tuple[float, float]], width: int, rows: int, plain: bool = False) -> list[str]:
    """Return a curve as lines of text, the top first.

    Parameters
    ----------
    points : sequence of (float, float)
        Places and values; a run that was resumed has been at some of the places twice.
    width, rows : int
        Columns and lines of the text.
    plain : bool
        Whether only characters of ASCII may be used.
    """
    heights = _heights(_means(points, width), rows)
    blocks = PLAIN if plain else BLOCKS
    whole = len(blocks) - 1
    return [
        "".join(blocks[max(0, min(whole, height - row * whole))] for height in heights).rstrip()
        for row in reversed(range(rows))
    ]


def _means(points: Sequence[tuple[float, float]], width: int) -> list[float | None]:
    """Return the mean value in each of `width` parts of the places; None where there is none."""
    known = [(place, value) for place, value in points if isfinite(place) and isfinite(value)]
    if not known:
        return []
    first, last = (extreme(place for place, _ in known) for extreme in (min, max))
    parts: list[list[float]] = [[] for _ in range(width)]
    for place, value in known:
        part = (place - first) / (last - first) if last > first else 1.0
        parts[min(width - 1, max(0, int(part * width)))].append(value)
    return [fsum(value / len(values) for value in values) if values else None for values in parts]


def _heights(means: Sequence[float | None], rows: int) -> list[int]:
    """Return heights from 1 to 8 times the number of rows, on straight lines where there is no value between others."""
    values = [each for each in means if each is not None]
    if not values:
        return []
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low > LOGARITHMIC
    low, high = (log(low), log(high)) if logarithmic else (low / 2, high / 2)
    most = rows * (len(BLOCKS) - 1)
    known = [place for place, each in enumerate(means) if each is not None]
    scaled = [(log(each) if logarithmic else each / 2) for each in values]
    drawn = np.interp(range(len(means)), known, scaled)
    part = (drawn - low) / (high - low) if high > low else np.full(len(means), 0.4 / rows)
    return [0 if place < known[0] else 1 + round(each * (most - 1)) for place, each in enumerate(part.tolist())]
