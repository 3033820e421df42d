"""What class labels tell: how to deal out samples unevenly to replicas, and whether a file is sorted by class."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.data.dataset import Split
from mpidl.errors import UsageError, quoted

#: Concentration from which on all shares are equal; much larger ones overflow.
EQUAL = 1e12
#: Separates the dealing of samples from the order of the data, which has the same seed.
STREAM = 0x6465616C


class Deal(NamedTuple):
    """A way to deal out samples by their labels.

    Attributes
    ----------
    by : {"label", "dirichlet"}
        "label": the samples, sorted by label, are cut into pieces of equal size, and each replica gets `value` of them
        (McMahan et al. 2017, section 3). It has as many labels, or up to twice as many where a piece has the end of one
        label and the beginning of the next. "dirichlet": the replicas' shares of a label's samples are drawn from a
        Dirichlet distribution with the concentration `value` (Hsu et al. 2019). A replica that would get no sample gets
        one of the replica that has most.
    value : float
    """

    by: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Deal:
        """Return the deal that ``"label:2"`` or ``"dirichlet:0.1"`` stands for; UsageError if it is neither."""
        by, _, number = text.partition(":")
        try:
            value = int(number) if by == "label" else float(number)
        except ValueError:
            value = 0
        if by not in ("label", "dirichlet") or not isfinite(value) or value <= 0:
            raise UsageError(
                f"{quoted(text)}, expected 'label:' and a number of labels, or 'dirichlet:' and one above 0"
            )
        return cls(by, value)

    def shares(self, labels: NDArray[np.integer], replicas: int, seed: int) -> list[NDArray[np.int64]]:
        """Return the indices of each replica's samples, at least one, in ascending order.

        Parameters
        ----------
        labels : array (samples,) of integers
        replicas : int
        seed : int
            Not negative.

        Raises
        ------
        UsageError
            There are too few samples.
        """
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
        pieces = replicas * (int(self.value) if self.by == "label" else 1)
        if len(labels) < pieces:
            raise UsageError(f"{len(labels)} training samples, expected at least {pieces} for {replicas} replicas")
        order = random.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        if self.by == "label":
            cut = np.array_split(order, pieces)
            dealt = [[cut[i] for i in row] for row in random.permutation(pieces).reshape(replicas, -1)]
        else:
            bounds = np.flatnonzero(np.diff(labels[order])) + 1
            dealt = [[] for _ in range(replicas)]
            for of_label in np.split(order, bounds):
                shares = random.dirichlet(np.full(replicas, min(self.value, EQUAL)))
                ends = np.round(np.cumsum(shares) * len(of_label)).astype(np.int64)[:-1]
                for own, part in zip(dealt, np.split(of_label, ends), strict=True):
                    own.append(part)
        return _none_empty([np.sort(np.concatenate(each)) for each in dealt])


def _none_empty(shares: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return the shares, those without samples with one of the largest one's: more would make the sizes more even."""
    for number, share in enumerate(shares):
        if not len(share):
            largest = max(range(len(shares)), key=lambda each: len(shares[each]))
            shares[number], shares[largest] = shares[largest][-1:], shares[largest][:-1]
    return shares


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
