"""Gradients of units, accrued in the vectors of one shard exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.vectors import Vectors


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
    """

    _adding = Sgd()

    def __init__(self, vectors: Vectors, pieces: Sequence[tuple[int, int]]) -> None:
        self._vectors, self._slices = vectors, [slice(*piece) for piece in pieces]
        self.evaluation = self.complete = 0
        self._targets: Sequence[str] = ()
        self._accrued = np.zeros((0, len(pieces)), bool)
        self.losses = np.zeros(0)

    def begin(self, evaluation: int, vectors: Iterable[str], targets: Sequence[str]) -> None:
        """Set vectors to 0 and expect the units of an evaluation.

        Parameters
        ----------
        evaluation : int
        vectors : iterable of str
            Names of the vectors that gradients are added to.
        targets : sequence of str
            For each unit, the vector that its gradient is added to.
        """
        self.evaluation, self.complete = evaluation, 0
        for name in vectors:
            self._vectors[name].fill(0)
        self._targets = targets
        self._accrued = np.zeros((len(targets), len(self._slices)), bool)
        self.losses = np.zeros(len(targets))

    def add_chunk(self, evaluation: int, unit: int, chunk: int, values: Any, loss: float) -> bool:
        """Add one chunk of a unit's gradient, unless it has been; return whether this completed the unit.

        Parameters
        ----------
        evaluation, unit, chunk : int
        values : array, shape (chunk's size,)
        loss : float
            Sum of the losses of the unit's samples; the same with every chunk.
        """
        if evaluation != self.evaluation or self._accrued[unit, chunk]:
            return False
        self._accrued[unit, chunk] = True
        target = self._vectors[self._targets[unit]]
        self._adding.update(target[self._slices[chunk]], (), values, 1, -1.0)
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
