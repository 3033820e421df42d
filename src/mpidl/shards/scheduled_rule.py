"""A rule with all that tells how a shard applies it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpidl.parameters.ranges import Range
from mpidl.rules import Rule
from mpidl.rules.segments import Segment


@dataclass(frozen=True)
class ScheduledRule:
    """A rule, the schedule of its rate, and the parameters that it updates in another way or leaves alone.

    Attributes
    ----------
    rule : Rule or None
        None if a coordinator's operations change the shard's vectors, and no rule does.
    rate_at : callable
        Takes the number of a portion of the data and returns the factor of the rule's rate for a gradient of it.
    statistics : sequence of Range
        Ranges of the flat parameter vector that hold statistics, such as a batch normalisation's running means. Their
        gradient is subtracted as it is; see `mpidl.rules.Rule.update`.
    segments : sequence of Segment
        Ranges that are updated in ways of their own, ascending; no push changes those that are frozen.
    """

    rule: Rule | None
    rate_at: Callable[[int], float] = lambda portion: 1.0
    statistics: Sequence[Range] = ()
    segments: Sequence[Segment] = ()
