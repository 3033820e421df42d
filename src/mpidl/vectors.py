"""The named vectors of one shard: what operations do with them, and gradients accrued in them exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from mpidl.algorithms.operations import Combine, Dot, Multiply, Operation, Segment
from mpidl.data.batch import Minibatch
from mpidl.data.portions import Portions
from mpidl.rules import Sgd
from mpidl.shard import BLOCK


class Vectors:
    """Carries out a coordinator's operations on one shard.

    Parameters
    ----------
    vectors : mapping of str to array (n,)
        By name, NumPy's or CuPy's; changed in place.
    block : int, optional
        Elements that are worked on at a time; all of them if not given.
    """

    _adding = Sgd()

    def __init__(self, vectors: Mapping[str, Any], block: int | None = BLOCK) -> None:
        self._vectors = vectors
        any_vector = next(iter(vectors.values()))
        size = any_vector.size
        block = max(1, size) if block is None else block
        self._blocks = [slice(start, min(start + block, size)) for start in range(0, size, block)]
        self._sum = np.empty_like(any_vector[:block])

    def __getitem__(self, name: str) -> Any:
        return self._vectors[name]

    def rehearse(self) -> None:
        """Compile what operations need, by carrying them out on one element of nobody's."""
        one = Vectors({"one": np.zeros_like(self._sum[:1])})
        one.carry_out((Dot((("one", "one"),)), Combine("one", ((1.0, "one"),)), Multiply("one", "one")))

    def carry_out(self, operations: Iterable[Operation]) -> list[float]:
        """Carry out operations in their order; return this shard's part of the results."""
        results: list[float] = []
        for operation in operations:
            match operation:
                case Dot(pairs):
                    results += self._dots(pairs)
                case Combine(target, terms):
                    self._combine(self._vectors[target], terms)
                case Multiply(target, vector):
                    product = self._vectors[target]
                    product *= self._vectors[vector]
        return results

    def _dots(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        vectors = [(self._vectors[a], self._vectors[b]) for a, b in pairs]
        totals = [0.0] * len(pairs)
        for block in self._blocks:
            for i, (a, b) in enumerate(vectors):
                totals[i] += float(np.dot(a[block], b[block]))
        return totals

    def _combine(self, target: Any, terms: Sequence[tuple[float, str]]) -> None:
        vectors = [(factor, self._vectors[name]) for factor, name in terms]
        for block in self._blocks:
            out = target[block]
            total = self._sum[: out.size]
            total.fill(0)
            for factor, vector in vectors:
                self._adding.update(total, (), vector[block], 1, -factor)
            out[:] = total


class UnitOf(NamedTuple):
    """What a unit is made of.

    Attributes
    ----------
    segment : int
        Which of the evaluation's.
    portions : range
        Modulo the number of portions of the data.
    """

    segment: int
    portions: range


def units(segments: Sequence[Segment], size: int) -> list[UnitOf]:
    """Cut a batch's segments into units of at most `size` consecutive portions."""
    return [
        UnitOf(number, range(first, min(first + size, segment.first + segment.count)))
        for number, segment in enumerate(segments)
        for first in range(segment.first, segment.first + segment.count, size)
    ]


def minibatches(unit: UnitOf, portions: Portions) -> tuple[Minibatch, ...]:
    """Return the minibatches of a unit, in the order of the first epoch."""
    of = (portions.minibatches(portion % portions.per_epoch) for portion in unit.portions)
    return tuple(minibatch for portion in of for minibatch in portion)


def of_segments(
    segments: Sequence[Segment], of: Sequence[UnitOf], losses: np.ndarray, portions: Portions
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the sum of the losses, and the number of samples, of each segment, given the losses of all units."""
    sums, samples = [], []
    for number in range(len(segments)):
        own = [i for i, unit in enumerate(of) if unit.segment == number]
        sums.append(fsum(losses[own]))
        samples.append(sum(len(portions.indices(p % portions.per_epoch)) for i in own for p in of[i].portions))
    return tuple(sums), tuple(samples)


class Accrual:
    """Adds the gradients of units to the vectors of one shard, each exactly once, whatever is sent twice.

    Parameters
    ----------
    vectors : Vectors
    pieces : list of Range
        The chunks of a push, within the shard.

    Attributes
    ----------
    evaluation : int
        What is accrued; pushes of another are dropped.
    complete : int
        Units of which every chunk has been accrued.
    dropped : int
        Chunks that had been accrued already, or were too late.
    """

    _adding = Sgd()

    def __init__(self, vectors: Vectors, pieces: Sequence[tuple[int, int]]) -> None:
        self._vectors, self._slices = vectors, [slice(*piece) for piece in pieces]
        self.evaluation = self.complete = self.dropped = 0
        self._targets: list[Any] = []
        self._accrued = np.zeros((0, len(pieces)), bool)
        self.losses = np.zeros(0)

    def begin(self, evaluation: int, segments: Sequence[Segment], of: Sequence[UnitOf]) -> None:
        """Set the segments' vectors to 0, and expect the units of an evaluation."""
        self.evaluation, self.complete = evaluation, 0
        for segment in segments:
            self._vectors[segment.vector].fill(0)
        self._targets = [self._vectors[segments[unit.segment].vector] for unit in of]
        self._accrued = np.zeros((len(of), len(self._slices)), bool)
        self.losses = np.zeros(len(of))

    def receive(self, evaluation: int, unit: int, chunk: int, values: Any, loss: float) -> bool:
        """Add one chunk of a unit's gradient, unless it has been; return whether this completed the unit.

        Parameters
        ----------
        evaluation, unit, chunk : int
        values : array, shape (chunk's size,)
        loss : float
            Sum of the losses of the unit's samples; the same with every chunk.
        """
        if evaluation != self.evaluation or self._accrued[unit, chunk]:
            self.dropped += 1
            return False
        self._accrued[unit, chunk] = True
        self._adding.update(self._targets[unit][self._slices[chunk]], (), values, 1, -1.0)
        if not self._accrued[unit].all():
            return False
        self.complete += 1
        self.losses[unit] = loss
        return True

    def has(self, unit: int) -> bool:
        """Tell whether a unit is complete."""
        return bool(self._accrued[unit].all())

    def unfinished(self) -> np.ndarray:
        """Return the numbers of the units that aren't complete."""
        return np.flatnonzero(~self._accrued.all(axis=1))
