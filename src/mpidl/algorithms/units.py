"""Units: the parts of a coordinator's batch that replicas take one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from mpidl.algorithms.coordinator_requests import Segment
from mpidl.data.batch import Minibatch
from mpidl.data.portions import Portions


class UnitOf(NamedTuple):
    """The data of a unit.

    Attributes
    ----------
    segment : int
        The segment of the evaluation, from 0.
    portions : range
        The portions, modulo the number of portions of the data.
    """

    segment: int
    portions: range


def units(segments: Sequence[Segment], size: int) -> list[UnitOf]:
    """Cut the segments of a batch into units of at most `size` consecutive portions."""
    return [
        UnitOf(number, range(first, min(first + size, segment.first + segment.count)))
        for number, segment in enumerate(segments)
        for first in range(segment.first, segment.first + segment.count, size)
    ]


def targets(segments: Sequence[Segment], of: Sequence[UnitOf]) -> tuple[list[str], list[str]]:
    """Return the names of the vectors in which an evaluation accrues, and for each unit that of its segment."""
    vectors = [segment.vector for segment in segments]
    return vectors, [vectors[unit.segment] for unit in of]


def minibatches(unit: UnitOf, portions: Portions) -> tuple[Minibatch, ...]:
    """Return the minibatches of a unit; the portions are those of the first epoch."""
    of = (portions.minibatches(portion % portions.per_epoch) for portion in unit.portions)
    return tuple(minibatch for portion in of for minibatch in portion)


def of_segments(
    segments: Sequence[Segment], of: Sequence[UnitOf], losses: np.ndarray, portions: Portions
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the sum of the losses and the number of samples of each segment, given the losses of all units."""
    sums, samples = [], []
    for number in range(len(segments)):
        own = [i for i, unit in enumerate(of) if unit.segment == number]
        sums.append(fsum(losses[own]))
        samples.append(sum(len(portions.indices(p % portions.per_epoch)) for i in own for p in of[i].portions))
    return tuple(sums), tuple(samples)
