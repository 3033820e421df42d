"""What stale pushes change of statistics, such as running means."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range, within


class Damping:
    """Divides what a push changes of statistics by its staleness + 1.

    A running average moves towards each batch's by a fraction, the momentum, of the distance that the worker saw. R
    workers see the same distance, and together would go R times as far: beyond the batches' average if R times the
    momentum exceeds 1, where a running variance may become negative, and further with every push if R is yet larger.
    Divided, R changes that are R - 1 updates stale go as far as their mean, which synchronous training takes.

    Parameters
    ----------
    statistics : sequence of Range
        The ranges of the flat vector that hold statistics.
    pieces : sequence of Range
        Parts of the flat vector: those that are pushed by themselves.
    parameters : array
        NumPy or CuPy, of the pushes' dtype.
    """

    def __init__(self, statistics: Sequence[Range], pieces: Sequence[Range], parameters: Any) -> None:
        self._parts = [[slice(*part) for part in within(statistics, piece)] for piece in pieces]
        self._largest = max((piece.size for piece in pieces), default=0)
        # An array of the same kind, which doesn't keep the parameters' memory when they move elsewhere.
        self._like = np.empty_like(parameters, shape=0)

    @cached_property
    def _scratch(self) -> Any:
        return np.empty_like(self._like, shape=(2, self._largest))

    def damped(self, piece: int, values: Any, staleness: int) -> Any:
        """Return a piece of a push that is so stale.

        Parameters
        ----------
        piece : int
            Number of the piece.
        values : array, shape (piece's size,), or (2, piece's size) for a change and its origin
            They stay as they are.
        staleness : int
            In updates.

        Returns
        -------
        array
            Like `values`; valid until the next call.
        """
        if not staleness or not self._parts[piece]:
            return values
        copied = self._scratch[:, : values.shape[-1]]
        copied = copied if values.ndim == 2 else copied[0]
        copied[...] = values
        self.damp(piece, copied if values.ndim == 1 else copied[0], staleness)
        return copied

    def damp(self, piece: int, change: Any, staleness: int) -> None:
        """Do the same with a change, shape (piece's size,), in place."""
        for part in self._parts[piece]:
            change[part] /= staleness + 1
