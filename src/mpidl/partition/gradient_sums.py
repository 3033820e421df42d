"""Gradients of parameters, summed over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from mpidl.nn.call import Call
from mpidl.parameters.box import Box


class GradientSums:
    """Sums of the gradients that a rank's layers compute of micro-batches, one after another.

    A layer writes those of the first micro-batch to where the sums are to be, and the others to memory that all layers
    share.

    Parameters
    ----------
    tensors : sequence of dict of str to Box
        For each step of the plan, the boxes of the tensors that the rank's layer takes.
    totals : sequence of dict of str to array
        For each step, where the sums go.
    xp
        NumPy or CuPy.
    dtype : str
    """

    def __init__(
        self, tensors: Sequence[dict[str, Box]], totals: Sequence[dict[str, Any]], xp: Any, dtype: str
    ) -> None:
        self._shapes = [{name: box.shape for name, box in own.items()} for own in tensors]
        self._totals, self._xp, self._dtype = totals, xp, dtype
        self._summands: list[dict[str, Any]] = []
        self._share, self._first = 1.0, True

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that is needed for more than one micro-batch."""
        return self._size * int(self._xp.dtype(self._dtype).itemsize)

    @property
    def _size(self) -> int:
        return max((sum(map(prod, shapes.values())) for shapes in self._shapes), default=0)

    def begin(self, share: float, first: bool) -> None:
        """Let the gradients that follow be a micro-batch's.

        Parameters
        ----------
        share : float
            Its share of the minibatch's samples. Gradients are of its part of the mean loss, but those of statistics,
            which are subtracted from them as they are, are its own: their mean over the samples counts.
        first : bool
            Whether it is the first of a minibatch.
        """
        self._share, self._first = share, first

    def add(self, step: int, call: Call, compute: Callable[[], None]) -> None:
        """Let a layer compute its gradients, and add them to the sums.

        Parameters
        ----------
        step : int
            Its number in the plan.
        call : Call
        compute : callable
            `Call.backward` or `Call.backward_weights`.
        """
        totals = self._totals[step]
        if not len(call.outputs):
            if self._first:
                for total in totals.values():
                    total.fill(0)
            return
        own = call.workspace.gradients = totals if self._first else self._summand(step)
        compute()
        if self._share != 1:
            for name in call.layer.statistics:
                own[name] *= self._share
        if not self._first:
            for name, total in totals.items():
                total += own[name]

    def _summand(self, step: int) -> dict[str, Any]:
        if not self._summands:
            memory = self._xp.empty(self._size, self._dtype)
            for shapes in self._shapes:
                start, own = 0, {}
                for name, shape in shapes.items():
                    own[name] = memory[start : start + prod(shape)].reshape(shape)
                    start += prod(shape)
                self._summands.append(own)
        return self._summands[step]
