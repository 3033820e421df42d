"""How a shard applies a rule: its schedule and exceptions, damping of stale statistics, and a moving average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from mpidl.parameters.ranges import Range, within
from mpidl.rules import Rule, Sgd
from mpidl.rules.segments import Segment


@dataclass(frozen=True)
class ScheduledRule:
    """A rule, the schedule of its rate, and the parameters that are exceptions to it.

    Attributes
    ----------
    rule : Rule or None
        None if only a coordinator's operations change the shard's vectors.
    rate_at : callable
        Takes the number of a minibatch in the run and returns the factor of the rule's rate for a gradient of it.
    statistics : sequence of Range
        Ranges of the flat parameter vector that hold statistics, such as a batch normalisation's running means.
        `mpidl.rules.Rule.update` subtracts their gradient unchanged.
    segments : sequence of Segment
        Ranges with their own settings, ascending; no push changes frozen ones.
    changed : callable
        Called with the shard and the number of a chunk when a push, or a policy at another time, has changed that.
    """

    rule: Rule | None
    rate_at: Callable[[int], float] = lambda batch: 1.0
    statistics: Sequence[Range] = ()
    segments: Sequence[Segment] = ()
    changed: Callable[[Any, int], None] = lambda shard, chunk: None

    @property
    def matrices(self) -> list[Segment]:
        """The segments that a rule of whole tensors updates as matrices."""
        return [each for each in self.segments if each.matrix is not None]


class Damping:
    """Divides a push's changes of statistics by its staleness + 1.

    A running average moves towards each batch's by a fraction, the momentum, of the distance that the worker saw. R
    workers see the same distance, and together would go R times as far: if R times the momentum exceeds 1, beyond the
    batches' average, where a running variance may become negative, and for larger R further with every push. Divided,
    R changes that are R - 1 updates stale go as far as their mean, the step of synchronous training.

    Parameters
    ----------
    statistics : sequence of Range
        The ranges of the flat vector that hold statistics.
    pieces : sequence of Range
        Parts of the flat vector that are pushed separately.
    parameters : array
        NumPy or CuPy, of the pushes' dtype.
    """

    def __init__(self, statistics: Sequence[Range], pieces: Sequence[Range], parameters: Any) -> None:
        self._parts = [[slice(*part) for part in within(statistics, piece)] for piece in pieces]
        self._largest = max((piece.size for piece in pieces), default=0)
        # An empty array of the same kind doesn't keep the parameters' memory alive when they move.
        self._like = np.empty_like(parameters, shape=0)

    @cached_property
    def _scratch(self) -> Any:
        return np.empty_like(self._like, shape=(2, self._largest))

    def damped(self, piece: int, values: Any, staleness: int) -> Any:
        """Return a piece of a push, with damped changes if it is stale; valid until the next call.

        The unchanged `values` have shape (piece's size,), or (2, piece's size) for a change and its origin.
        """
        if not staleness or not self._parts[piece]:
            return values
        copied = self._scratch[:, : values.shape[-1]]
        copied = copied if values.ndim == 2 else copied[0]
        copied[...] = values
        self.damp(piece, copied if values.ndim == 1 else copied[0], staleness)
        return copied

    def damp(self, piece: int, change: Any, staleness: int) -> None:
        """Damp a change, shape (piece's size,), in place."""
        for part in self._parts[piece]:
            change[part] /= staleness + 1


#: Name of the vector of the average.
AVERAGE = "ema"


class Average(Struct, frozen=True):
    """Moves the average of a chunk towards the parameters: ``average += (1 - decay) * (parameters - average)``.

    Each update of the shard's parameters is one step. The average begins with their first values.

    References
    ----------
    B. Polyak, A. Juditsky (1992), Acceleration of stochastic approximation by averaging.
    """

    decay: float
    _adding: ClassVar[Any] = Sgd()

    def __call__(self, shard: Any, chunk: int) -> None:
        # A step of SGD whose gradient, with weight decay -1, is the parameters minus the average.
        average, rate = shard.part(shard.vectors[AVERAGE], chunk), self.decay - 1
        self._adding.update(average, (), shard.chunk(chunk), 1, rate, decay=-1.0)
