"""Curves of characters."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

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
    blocks = PLAIN if plain else BLOCKS
    whole = len(blocks) - 1
    heights = _heights(np.array(points, float).reshape(-1, 2), width, rows * whole)
    return [
        "".join(blocks[max(0, min(whole, height - row * whole))] for height in heights).rstrip()
        for row in reversed(range(rows))
    ]


def _heights(points: np.ndarray, width: int, most: int) -> list[int]:
    """Return the height of the mean value in each column, from 1 to `most`; 0 before the first.

    Columns without a value are on straight lines between others.
    """
    places, values = points[np.isfinite(points).all(axis=1)].T
    if not values.size:
        return []
    first, last = float(places.min()), float(places.max())
    part = (places - first) / (last - first) if last > first else np.ones(len(places))
    column = np.minimum(part * width, width - 1).astype(int)
    number = np.bincount(column, minlength=width)
    known = np.flatnonzero(number)
    means = np.bincount(column, values / number[column])[known]
    low, high = float(means.min()), float(means.max())
    # Halves, so that differences can't overflow.
    scaled = np.log(means) if low > 0 and log(high) - log(low) > log(LOGARITHMIC) else means / 2
    low, high = float(scaled.min()), float(scaled.max())
    drawn = np.interp(range(width), known, scaled)
    height = (drawn - low) / (high - low) if high > low else np.full(width, 0.4 * (len(BLOCKS) - 1) / most)
    heights: list[int] = np.where(np.arange(width) < known[0], 0, 1 + np.rint(height * (most - 1))).astype(int).tolist()
    return heights
