"""Whether neighbours among the samples are of the same classes, as in files that are sorted by class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpidl.data.dataset import Split

#: Number of portions whose labels are compared, and of labels of each.
PORTIONS, LABELS = 16, 1024
#: Least correlation that counts: that of portions of twenty classes each, of very many.
CORRELATION = 0.05
#: Least correlation in standard deviations of that of shuffled samples.
DEVIATIONS = 12


def portions_are_alike(split: Split, portion: int) -> bool:
    """Return whether portions of neighbours have samples of few classes, but not all of the same ones.

    The labels of a few portions are read. The result is False if there are no classes, or they are unknown.
    """
    portions = split.samples // portion
    if min(portions, portion) < 2:
        return False
    found = []
    for number in np.linspace(0, portions - 1, min(portions, PORTIONS), dtype=np.int64).tolist():
        labels = split.labels(number * portion, (number + 1) * portion)
        if labels is None or labels.ndim > 1:
            return False
        found.append(labels[np.linspace(0, portion - 1, min(portion, LABELS), dtype=np.int64)])
    return _alike(np.stack(found))


def _alike(labels: NDArray[np.integer]) -> bool:
    """Return whether labels (portions, n) agree within a portion more often than between portions.

    The measure is their intraclass correlation: 1 - P(differ | same portion) / P(differ | two portions). That of
    shuffled samples has the mean 0 and at most the standard deviation of two equally frequent classes.
    """
    (portions, size), (classes, places) = labels.shape, np.unique(labels, return_inverse=True)
    places = places.reshape(labels.shape) + len(classes) * np.arange(portions)[:, None]
    counts = np.bincount(places.ravel(), minlength=portions * len(classes)).reshape(portions, -1)
    squares = float((counts**2).sum())
    within = 1 - (squares - labels.size) / (labels.size * (size - 1))
    between = 1 - (float((counts.sum(axis=0) ** 2).sum()) - squares) / (labels.size * (labels.size - size))
    deviation = np.sqrt(2 / (labels.size * (size - 1)))
    return bool(between > 0 and 1 - within / between > max(CORRELATION, DEVIATIONS * deviation))
