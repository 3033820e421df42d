"""What is final of a gradient, while PyTorch computes it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch

from mpidl.nn.adaptation import ModelError
from mpidl.nn.model import TakeFinal
from mpidl.torch.factors import FactoredLayer
from mpidl.torch.vector import Vector
from mpidl.wire import Factors


class BackwardProgress:
    """Knows from which element on a gradient is final, as far as a backward pass has come.

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
    factored : set of int
        The parameters whose factors are taken in the present pass, in the place of their gradients.
    """

    def __init__(self, vector: Vector, name: str) -> None:
        self._vector, self._name = vector, name
        self._starts = [part.range.start for part in vector.layout][: len(vector.parameters)]
        self._late, self._late_statistics = set[int](), False
        self._done: list[bool] = []
        self._final = self._passes = 0
        self._watching = False
        self._take: TakeFinal | None = None
        self._layers: dict[int, FactoredLayer] = {}
        self.factored = set[int]()
        self._samples = 0

    def begin(
        self, loss: torch.Tensor, take: TakeFinal, layers: Sequence[FactoredLayer] = (), samples: int = 0
    ) -> None:
        """Watch the backward pass of a loss that begins.

        Parameters
        ----------
        loss : torch.Tensor
        take : callable
            See `CompleteModel.wait_free_gradient`.
        layers : sequence of FactoredLayer
            The layers whose factors are taken.
        samples : int
            Number of samples in the minibatch if the gradient is taken in factors; 0 if it isn't.
        """
        self._done = [not each.requires_grad for each in self._vector.parameters]
        self._final, self._watching = len(self._done), True
        self._vector.store_statistics()
        takes = self._passes > 0 and not self._late_statistics and isfinite(loss.item())
        self._take, self._samples = (take, samples) if takes else (None, 0)
        self._layers = {layer.number: layer for layer in layers} if self._samples else {}
        self.factored = {number for number, layer in self._layers.items() if layer.only}
        for layer in self._layers.values():
            layer.taken = self._found

    def accumulated(self, number: int) -> None:
        """Note that the gradient of a parameter has been accumulated, and stored in the flat gradient."""
        if not self._watching:
            return
        if self._done[number]:
            self._late.add(number)
            if number >= self._final or number in self.factored:
                raise self._changed(f"the gradient of {self._vector.layout.slices[number].name}")
        self._done[number] = True
        self._advance()

    def _found(self, layer: FactoredLayer) -> None:
        if layer.only:
            self._done[layer.number] = True
            self._advance()

    def _advance(self) -> None:
        """Let the gradient be taken from the first element on from which it is final now."""
        final = self._final
        while final and self._done[final - 1] and final - 1 not in self._late:
            final -= 1
        self._take_from(final)

    def _take_from(self, final: int) -> None:
        if self._take is None or final == self._final:
            return
        gradient, before, self._final = self._vector.gradient, self._final, final
        if not self._samples:
            self._take(gradient, self._starts[final])
            return
        # Each call has the factors of one layer.
        for number in range(before - 1, final - 1, -1):
            if number in self._layers:
                self._take(gradient, self._starts[number], self._layers[number].factors(self._samples))
        if final not in self._layers:
            self._take(gradient, self._starts[final], Factors(self._samples))

    def end(self) -> None:
        """End the watch: the pass is over."""
        self._watching = False
        self._passes += 1
        if self._vector.store_statistics_again():
            self._late_statistics = True
            if self._final < len(self._done):
                raise self._changed("a statistic")

    def take_rest(self) -> None:
        """Let the rest of a gradient that is taken in factors be taken, when all of it has been stored."""
        if self._samples:
            self._take_from(0)
            self._samples = 0

    def _changed(self, what: str) -> ModelError:
        expected = "expected that in every batch or in none (torch.utils.checkpoint: use_reentrant=False)"
        return ModelError(f"{self._name}: {what} changed after it had been complete, {expected}")
