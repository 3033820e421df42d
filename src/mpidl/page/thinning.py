"""Curves with as many points as a screen shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def kept(axes: Sequence[np.ndarray], values: np.ndarray, parts: int) -> np.ndarray:
    """Return the places of the points of a curve that a screen shows.

    They include the first and the last point and, in each of equal parts of every axis, those with the least and the
    greatest value, so that peaks stay.

    Parameters
    ----------
    axes : sequence of np.ndarray
        What the values are drawn over, each of their length; NaN where a value has no place on the axis.
    values : np.ndarray
        Those that are not finite are left out.
    parts : int
        Number of parts of an axis: the pixels of its width.

    Returns
    -------
    np.ndarray
        Places in ascending order.
    """
    places = np.flatnonzero(np.isfinite(values))
    if places.size <= 2 * parts:
        return places
    found = [places[[0, -1]]]
    for axis in axes:
        there = places[np.isfinite(axis[places])]
        if there.size:
            found += _extremes(there, part_of(axis[there], parts), values[there])
    return np.unique(np.concatenate(found))


def part_of(axis: np.ndarray, parts: int) -> np.ndarray:
    """Return the number of the part, of equal ones of the axis, in which each of its values lies."""
    low, high = float(axis.min()), float(axis.max())
    if not high > low:
        return np.zeros(len(axis), int)
    return np.minimum((axis - low) * (parts / (high - low)), parts - 1).astype(int)


def _extremes(places: np.ndarray, part: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """Return the places of the least and of the greatest value of each part."""
    order = np.lexsort((values, part))
    first = np.flatnonzero(np.diff(part[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    return [places[order[first]], places[order[last]]]
