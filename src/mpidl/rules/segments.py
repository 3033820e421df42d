"""Segments of the flat parameter vector with update settings of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from mpidl.launch.fault_points import fault_point
from mpidl.parameters.ranges import Range, within
from mpidl.rules.rule import Rule


class Matrix(NamedTuple):
    """A tensor as a matrix in C order. Its rows are outputs or, if it is `transposed`, inputs."""

    rows: int
    columns: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns


class Segment(NamedTuple):
    """A range of the flat vector, and how rules update it.

    Attributes
    ----------
    rate : float
        Factor of the learning rate.
    weight_decay : float or None
        Takes the place of the rule's own ``weight_decay`` or, if it has none, is the `decay` of `Rule.update`. None
        leaves the rule unchanged.
    frozen : bool
        Whether these parameters never change.
    rule : Rule or None
        Takes the place of the rule.
    matrix : Matrix or None
        The range is that of a whole tensor, which a `mpidl.rules.tensors.TensorRule` updates as this matrix.
    """

    range: Range
    rate: float = 1.0
    weight_decay: float | None = None
    frozen: bool = False
    rule: Rule | None = None
    matrix: Matrix | None = None


def unfrozen(segments: Sequence[Segment], whole: Range) -> list[slice]:
    """Return the trainable parts of a range of the flat vector, relative to the range's start."""
    return [slice(*each.range) for each in _covering(segments, whole) if not each.frozen]


class SegmentedRule:
    """A rule as it updates one range of the flat vector: each segment in the segment's way.

    Results are bitwise independent of how the vector is divided into ranges.

    Parameters
    ----------
    whole : Range
        The elements of the flat vector that are updated.
    statistics : sequence of Range
        Ranges of the flat vector; see `sparing` of `Rule.update`. They are in no segment.
    segments : sequence of Segment
        Ascending.

    Attributes
    ----------
    rates : list of (slice, float)
        The factor of the rate for each part of the range.
    """

    def __init__(
        self, rule: Rule, whole: Range, statistics: Sequence[Range] = (), segments: Sequence[Segment] = ()
    ) -> None:
        self._rule, self._sparing = rule, within(statistics, whole)
        covering = _covering(segments, whole)
        self.rates = [(slice(*each.range), each.rate) for each in covering]
        plain = [Segment(Range(0, whole.size))]
        self._parts = None if covering == plain else [self._part(each) for each in covering if not each.frozen]

    def _part(self, segment: Segment) -> tuple[slice, Rule, float, float, list[Range]]:
        """Return the elements to update, the rule, the factor of its rate, its decay and the statistics to spare."""
        rule, decay = segment.rule or self._rule, segment.weight_decay
        if decay is not None and any(field.name == "weight_decay" for field in fields(rule)):  # type: ignore[arg-type]
            rule, decay = replace(rule, weight_decay=decay), None  # type: ignore[type-var]
        return slice(*segment.range), rule, segment.rate, decay or 0.0, within(self._sparing, segment.range)

    def update(
        self,
        parameters: Any,
        state: tuple[Any, ...],
        gradient: Any,
        step: int,
        rate: float,
        sparse: bool = False,
        weight: float = 1.0,
    ) -> None:
        """Apply one gradient to the range as `Rule.update` does, with `rate` in place of the rule's own."""
        if self._parts is None:
            self._rule.update(parameters, state, gradient, step, rate, sparse, self._sparing, weight=weight)
            return
        for own, rule, factor, decay, sparing in self._parts:
            of_part = tuple([vector[own] for vector in state])
            rule.update(parameters[own], of_part, gradient[own], step, rate * factor, sparse, sparing, decay, weight)
            fault_point("half-applied")


def _covering(segments: Sequence[Segment], whole: Range) -> list[Segment]:
    """Return segments that cover a range, relative to its start: those given, and the gaps between them."""
    covering, end = [], whole.start
    for segment in segments:
        shared = segment.range.intersect(whole)
        if shared is not None:
            if end < shared.start:
                covering.append(Segment(Range(end, shared.start)))
            covering.append(segment._replace(range=shared))
            end = shared.stop
    if end < whole.stop:
        covering.append(Segment(Range(end, whole.stop)))
    return [each._replace(range=each.range.shift(-whole.start)) for each in covering]
