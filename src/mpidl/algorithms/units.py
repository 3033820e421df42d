"""Units: the parts of a coordinator's batch that replicas take one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from mpidl.algorithms.coordinator_requests import Segment
from mpidl.data.batch import Minibatch
from mpidl.data.schedule import Portions


class UnitData(NamedTuple):
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


def cut_units(segments: Sequence[Segment], size: int) -> list[UnitData]:
    """Cut the segments of a batch into units of at most `size` consecutive portions."""
    return [
        UnitData(number, range(first, min(first + size, segment.first + segment.count)))
        for number, segment in enumerate(segments)
        for first in range(segment.first, segment.first + segment.count, size)
    ]


def targets(segments: Sequence[Segment], units: Sequence[UnitData]) -> tuple[list[str], list[str]]:
    """Return the names of the vectors in which an evaluation accrues, and for each unit that of its segment."""
    vectors = [segment.vector for segment in segments]
    return vectors, [vectors[unit.segment] for unit in units]


def minibatches(unit: UnitData, portions: Portions) -> tuple[Minibatch, ...]:
    """Return the minibatches of a unit; its portions are those of the first epoch."""
    numbers = (portion % portions.per_epoch for portion in unit.portions)
    return tuple(minibatch for number in numbers for minibatch in portions.minibatches(number))


def segment_sums(
    segments: Sequence[Segment],
    units: Sequence[UnitData],
    losses: np.ndarray,
    weights: np.ndarray,
    portions: Portions,
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]:
    """Return the sums of losses and weights and the number of samples of each segment, given those of all units."""
    sums, totals, samples = [], [], []
    for number in range(len(segments)):
        own = [i for i, unit in enumerate(units) if unit.segment == number]
        sums.append(fsum(losses[own]))
        totals.append(fsum(weights[own]))
        samples.append(sum(len(portions.indices(p % portions.per_epoch)) for i in own for p in units[i].portions))
    return tuple(sums), tuple(totals), tuple(samples)
