"""Accruing the gradients of an evaluation's units in the vectors of one shard, each exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.vectors import Vectors


class Accrual:
    """Adds the gradients of units to vectors of one shard, each exactly once even if workers send it twice.

    Parameters
    ----------
    vectors : Vectors
    pieces : list of Range
        The chunks, within the shard.

    Attributes
    ----------
    evaluation : int
        Number of the evaluation. Chunks of other evaluations are dropped.
    complete : int
        Number of units of which every chunk has been accrued.
    losses, weights : array, shape (units,)
        For each complete unit, the sum of its batches' losses, each times the batch's weight, and of these weights.
    """

    _adding = Sgd()

    def __init__(self, vectors: Vectors, pieces: Sequence[tuple[int, int]]) -> None:
        self._vectors, self._slices = vectors, [slice(*piece) for piece in pieces]
        self.evaluation = self.complete = 0
        self._targets: Sequence[str] = ()
        self._accrued = np.zeros((0, len(pieces)), bool)
        self.losses, self.weights = np.zeros(0), np.zeros(0)

    def begin(self, evaluation: int, vectors: Iterable[str], targets: Sequence[str]) -> None:
        """Set vectors to 0 and expect the units of an evaluation.

        Parameters
        ----------
        evaluation : int
            Number of the evaluation.
        vectors : iterable of str
            Names of the vectors that gradients are added to.
        targets : sequence of str
            For each unit, the name of the vector that its gradient is added to.
        """
        self.evaluation, self.complete = evaluation, 0
        for name in vectors:
            self._vectors[name].fill(0)
        self._targets = targets
        self._accrued = np.zeros((len(targets), len(self._slices)), bool)
        self.losses, self.weights = np.zeros(len(targets)), np.zeros(len(targets))

    def add_chunk(self, evaluation: int, unit: int, chunk: int, values: Any, loss: float, weight: float) -> bool:
        """Add one chunk of a unit's gradient, unless it has been added before.

        Parameters
        ----------
        evaluation, unit, chunk : int
            Numbers of the evaluation, of the unit in it, and of the chunk.
        values : array, shape (chunk's size,)
        loss, weight : float
            Loss and weight of the unit, the same with every chunk; see `losses`.

        Returns
        -------
        bool
            Whether this completed the unit.
        """
        if evaluation != self.evaluation or self._accrued[unit, chunk]:
            return False
        self._accrued[unit, chunk] = True
        target = self._vectors[self._targets[unit]]
        self._adding.update(target[self._slices[chunk]], (), values, 1, -1.0)
        if not self._accrued[unit].all():
            return False
        self.complete += 1
        self.losses[unit], self.weights[unit] = loss, weight
        return True

    def state(self) -> dict[str, np.ndarray]:
        """Return all that is kept between two chunks except the vectors: counters of int64, losses and weights."""
        names = list(self._vectors)
        return {
            "evaluation": np.array(self.evaluation),
            "complete": np.array(self.complete),
            "targets": np.array([names.index(name) for name in self._targets], np.int64),
            "accrued": self._accrued.astype(np.int64),
            "losses": self.losses,
            "weights": self.weights,
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on where another instance, with vectors of the same names, was when its `state` was taken."""
        names = list(self._vectors)
        self.evaluation, self.complete = int(state["evaluation"]), int(state["complete"])
        self._targets = [names[number] for number in state["targets"].tolist()]
        self._accrued = state["accrued"].astype(bool)
        self.losses, self.weights = state["losses"].copy(), state["weights"].copy()

    def has(self, unit: int) -> bool:
        """Tell whether a unit is complete."""
        return bool(self._accrued[unit].all())

    def unfinished(self) -> np.ndarray:
        """Return the numbers of the units that aren't complete."""
        return np.flatnonzero(~self._accrued.all(axis=1))
