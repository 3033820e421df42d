"""What is final of a gradient, while PyTorch computes it."""

from __future__ import annotations

from math import isfinite

import torch

from mpidl.nn.adaptation import ModelError
from mpidl.nn.wait_free import TakeFinal
from mpidl.torch.vector import Vector


class BackwardProgress:
    """Reports from which element on a gradient is final, as far as a backward pass has come.

    A parameter's gradient is final when PyTorch has accumulated it, once in a backward pass. Where a pass has another
    within it, as `torch.utils.checkpoint` does with ``use_reentrant=True``, it may be accumulated again, and statistics
    may change. What has done so is never final before the end of later passes; the first pass is only watched.

    Parameters
    ----------
    vector : Vector
    name : str
        How messages call the module.

    Attributes
    ----------
    take : callable or None
        See `mpidl.nn.wait_free.WaitFree`; None: nothing is watched.
    """

    def __init__(self, vector: Vector, name: str) -> None:
        self._vector, self._name = vector, name
        self._starts = [part.range.start for part in vector.layout][: len(vector.parameters)]
        self._late, self._late_statistics = set[int](), False
        self._done: list[bool] = []
        self._final = self._passes = 0
        self._watching = False
        self.take: TakeFinal | None = None
        self._takes = False

    def begin(self, loss: torch.Tensor) -> None:
        """Watch the backward pass of a loss that begins."""
        self._done = [not each.requires_grad for each in self._vector.parameters]
        self._final, self._watching = len(self._done), True
        self._vector.store_statistics()
        self._takes = self._passes > 0 and not self._late_statistics and isfinite(loss.item())

    def accumulated(self, number: int) -> None:
        """Note that the gradient of a parameter has been accumulated, and stored in the flat gradient."""
        if not self._watching:
            return
        if self._done[number]:
            self._late.add(number)
            if number >= self._final:
                raise self._changed(f"the gradient of {self._vector.layout.slices[number].name}")
        self._done[number] = True
        final = self._final
        while final and self._done[final - 1] and final - 1 not in self._late:
            final -= 1
        if self._takes and self.take is not None and final < self._final:
            self._final = final
            self.take(self._vector.gradient, self._starts[final])

    def end(self) -> None:
        """End the watch: the pass is over."""
        self._watching = False
        self._passes += 1
        if self._vector.store_statistics_again():
            self._late_statistics = True
            if self._final < len(self._done):
                raise self._changed("a statistic")

    def _changed(self, what: str) -> ModelError:
        expected = "expected that in every batch or in none (torch.utils.checkpoint: use_reentrant=False)"
        return ModelError(f"{self._name}: {what} changed after it had been complete, {expected}")
