"""The staleness of pushes over a run: a histogram for each stretch of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mpidl.page.course import Course
from mpidl.page.thinning import part_of

#: Stretches of a run, and the most classes of staleness.
STRETCHES, CLASSES = 80, 32


class Cells(NamedTuple):
    """The classes of staleness that pushes had, in stretches of a run.

    Attributes
    ----------
    begin, end : mapping of str to np.ndarray
        Where each cell's stretch lies on each axis.
    low, high : np.ndarray
        The staleness of the cell's class: `low` and above, below `high`.
    share : np.ndarray
        Fraction of the stretch's pushes.
    """

    begin: Mapping[str, np.ndarray]
    end: Mapping[str, np.ndarray]
    low: np.ndarray
    high: np.ndarray
    share: np.ndarray


def histogram(course: Course) -> Cells | None:
    """Return the cells with any pushes; None if the run has none."""
    counts = course.run.metrics.get("staleness_histogram")
    if counts is None or counts.ndim != 2 or not counts.any() or not course.axes:
        return None
    axis = next(iter(course.axes.values()))
    stretch = np.column_stack([course.attempt, part_of(np.nan_to_num(axis), STRETCHES)])
    ends = np.flatnonzero(np.append(np.any(np.diff(stretch, axis=0), axis=1), True))
    attempts = course.attempt[ends]
    begins = np.append(-1, ends[:-1])
    # The counts are those since the attempt began.
    anew = np.diff(attempts, prepend=-1) > 0
    new = np.maximum(counts[ends] - np.where(anew[:, None], 0.0, counts[begins]), 0.0)
    width = -(-counts.shape[1] // CLASSES)
    classes = np.add.reduceat(new, np.arange(0, counts.shape[1], width), axis=1)
    pushes = classes.sum(axis=1)
    rows, columns = np.nonzero(classes)
    share = classes[rows, columns] / pushes[rows]
    begin, end = {}, {}
    for name, values in course.axes.items():
        # The first record of an attempt ends a stretch that began at a checkpoint, of which there may be no record.
        before = np.where(anew, values[np.minimum(begins + 1, ends)], values[begins])
        before[0] = 0.0
        begin[name], end[name] = before[rows], values[ends][rows]
    return Cells(begin, end, columns * width - 0.5, (columns + 1) * width - 0.5, share)
