"""Samples that belong to replicas: dealt out unevenly by their labels, to try out data that differ between workers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
                _deal(of_label, random.dirichlet(np.full(replicas, min(self.value, EQUAL))), dealt)
        return _none_empty([np.sort(np.concatenate(each)) for each in dealt])


def _deal(samples: NDArray[np.int64], shares: NDArray[np.float64], dealt: Sequence[list[NDArray[np.int64]]]) -> None:
    """Deal out samples in these shares, which sum to 1."""
    bounds = np.round(np.cumsum(shares) * len(samples)).astype(np.int64)[:-1]
    for own, part in zip(dealt, np.split(samples, bounds), strict=True):
        own.append(part)


def _none_empty(shares: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return the shares, those without samples with one of the largest one's: more would make the sizes more even."""
    for number, share in enumerate(shares):
        if not len(share):
            largest = max(range(len(shares)), key=lambda each: len(shares[each]))
            shares[number], shares[largest] = shares[largest][-1:], shares[largest][:-1]
    return shares
