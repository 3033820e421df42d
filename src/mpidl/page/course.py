"""The course of a run: its records in order, and where they and its events lie on each axis; points of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from mpidl.history import Run

#: What curves are drawn over: the figure of a record, and the axis's label.
AXES = {"samples": "samples", "epoch": "epochs", "time": "training time", "iteration.number": "iterations"}


class RunCourse:
    """The records of a run.

    Attributes
    ----------
    run : Run
    metrics : Columns
        Its records.
    axes : mapping of str to np.ndarray
        The place of each record on the axes that the run has.
    attempt : np.ndarray
        The attempt that wrote each record: 0, and after each resumption one more. What an attempt did after its last
        checkpoint, the next one does again.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.metrics = run, run.metrics
        self.axes: Mapping[str, np.ndarray] = {name: self.metrics[name] for name in AXES if self.has(name)}
        begins = np.zeros(run.metrics.rows, bool)
        if self.has("unix_time"):
            times = [each.get("time") for each in run.event_list if each["event"] == "resume"]
            after = np.searchsorted(self.metrics["unix_time"], [each for each in times if each is not None])
            begins[after[after < len(begins)]] = True
        self.attempt = np.cumsum(begins)

    def has(self, name: str) -> bool:
        """Return whether there is a number of this name in any record."""
        return bool(self.metrics.known(name).any())

    def evaluated(self, split: str) -> np.ndarray:
        """Return whether each record is the first with its figures of a split of the data; later ones repeat them."""
        new = np.zeros(self.metrics.rows, bool)
        new[:1] = True
        for name in self.metrics:
            if name.startswith(f"{split}_") and self.has(name):
                new[1:] |= np.diff(self.metrics[name]) != 0  # also if one of them is NaN
        return new

    def since(self, name: str) -> np.ndarray:
        """Return by how much a growing number has grown since the record before, or since the attempt began."""
        found = np.nan_to_num(self.metrics[name])
        before = np.append(0.0, found[:-1])
        before[np.diff(self.attempt, prepend=-1) > 0] = 0.0
        grown: np.ndarray = np.maximum(found - before, 0.0)
        return grown

    @cached_property
    def _clock(self) -> np.ndarray | None:
        """The time of each record in seconds since the epoch, with that of the run's first fetch before them."""
        if not (self.has("unix_time") and self.has("time")) or not self.metrics.known("unix_time").all():
            return None
        clock = np.maximum.accumulate(self.metrics["unix_time"])
        return np.append(clock[0] - self.metrics["time"][0], clock)

    def place(self, axis: str, times: np.ndarray, virtual: np.ndarray) -> np.ndarray:
        """Return where events lie on an axis; NaN where that is unknown.

        Parameters
        ----------
        axis : str
        times : np.ndarray
            When they happened, in seconds since the epoch.
        virtual : np.ndarray
            When they happened in seconds of training, where that is known.
        """
        values = np.append(0.0, self.axes[axis])
        found = np.full(len(times), np.nan)
        if self._clock is not None:
            found = np.interp(times, self._clock, values)
        known = np.isfinite(virtual)
        if known.any() and "time" in self.axes:
            found[known] = np.interp(virtual[known], np.append(0.0, self.axes["time"]), values)
        return found


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
