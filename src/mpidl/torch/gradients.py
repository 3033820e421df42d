"""The gradients of a PyTorch module, and which part of one is final while PyTorch computes the rest."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from mpidl.data.batch import Batch
from mpidl.nn.adaptation import ModelError
from mpidl.nn.model import GradientObserver
from mpidl.torch.calls import Calls, pieces
from mpidl.torch.loan import Loan
from mpidl.torch.vector import Vector


class BackwardProgress:
    """Reports the first final element of a gradient during a backward pass.

    A parameter's gradient is final when PyTorch has accumulated it, once in a backward pass. In nested passes, as of
    `torch.utils.checkpoint` with ``use_reentrant=True``, it may be accumulated again, and statistics may change. The
    first pass, during which nothing is reported, finds those; in later passes they are final only at the end.

    `take`, if any, takes the reports, as `mpidl.nn.model.PlacedModel.report_final` describes.
    """

    def __init__(self, vector: Vector, name: str) -> None:
        self._vector, self._name = vector, name
        self._starts = [part.range.start for part in vector.layout][: len(vector.parameters)]
        self._late, self._late_statistics = set[int](), False
        self._done: list[bool] = []
        self._final = self._passes = 0
        self._watching = False
        self.take: GradientObserver | None = None
        self._takes = False

    def begin(self, loss: torch.Tensor) -> None:
        """Begin to watch the backward pass of a loss."""
        self._done = [not each.requires_grad for each in self._vector.parameters]
        self._final, self._watching = len(self._done), True
        self._vector.store_statistics()
        self._takes = self._passes > 0 and not self._late_statistics and isfinite(loss.item())

    def accumulated(self, number: int) -> None:
        """Record that the gradient of a parameter has been accumulated, and stored in the flat gradient."""
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
            # If it is given up here, the pass has no end.
            self._watching = False
            self.take(self._vector.gradient, self._starts[final])
            self._watching = True

    def end(self) -> None:
        """Stop watching at the end of the pass."""
        self._watching = False
        self._passes += 1
        if self._vector.store_statistics_again():
            self._late_statistics = True
            if self._final < len(self._done):
                raise self._changed("a statistic")

    def _changed(self, what: str) -> ModelError:
        expected = "expected this in every batch or in none (torch.utils.checkpoint: use_reentrant=False)"
        return ModelError(f"{self._name}: {what} changed after it was complete, {expected}")


class Gradients:
    """Computes gradients of a module's parameters, which move into the flat gradient as soon as each is complete.

    Parameters
    ----------
    vector : Vector
        The module's tensors.
    name : str
        Name of the module in messages.
    micro_batches : int
        Number of pieces into which a batch is divided.

    Attributes
    ----------
    progress : BackwardProgress
        Watches the backward passes of undivided batches on the CPU.
    """

    def __init__(self, vector: Vector, calls: Calls, name: str, micro_batches: int) -> None:
        self._vector, self._calls, self._name, self._micro_batches = vector, calls, name, micro_batches
        self.progress = BackwardProgress(vector, name)
        self._stored = [False] * len(vector.parameters)
        self._computing = False

    def attach(self, loan: Loan) -> None:
        """Let PyTorch call `store` while the loan lasts."""
        self._computing, self._loan = False, loan  # kept alive by the hooks
        loan.lend(
            self._vector.tensors,
            [
                parameter.register_post_accumulate_grad_hook(
                    lambda each, number=number: self._accumulated(number, each)
                )
                for number, parameter in enumerate(self._vector.parameters)
            ],
        )

    def _accumulated(self, number: int, parameter: torch.Tensor) -> None:
        """Store a parameter's gradient, unless it is one of the module's owner."""
        if self._computing:
            self.store(number, parameter)

    # The steps of a gradient.

    def begin(self, number: int) -> None:
        """Prepare for the gradient of the batch of this number; ModelError if a parameter has been replaced."""
        self.check()
        self._calls.set_mode(training=True)
        self._calls.seed_by(number)
        self._vector.load_statistics()
        self._stored = [False] * len(self._stored)
        for parameter in self._vector.parameters:
            parameter.grad = None
        self._computing = True

    def check(self) -> None:
        """Raise ModelError if a parameter has been replaced."""
        if (stray := self._vector.stray()) is not None:
            raise ModelError(f"{self._name} has replaced its parameter {stray}, expected changes in place")

    def store(self, number: int, parameter: torch.Tensor) -> None:
        """Move a parameter's complete gradient into the flat gradient."""
        gradient, parameter.grad = parameter.grad, None
        if gradient.layout is not torch.strided:
            name = self._vector.layout.slices[number].name
            raise ModelError(f"{self._name}: the gradient of {name} is sparse, expected a dense one (sparse = False)")
        if self._stored[number]:
            self._vector.gradients[number].add_(gradient)
        else:
            self._vector.gradients[number].copy_(gradient)
            self._stored[number] = True
        self.progress.accumulated(number)

    def end(self) -> None:
        """Complete the gradient: it is 0 where nothing has been stored."""
        self._computing = False
        if not all(self._stored):
            for stored, gradient in zip(self._stored, self._vector.gradients, strict=True):
                if not stored:
                    gradient.zero_()

    def of_loss(self, loss: torch.Tensor) -> None:
        """Compute the gradient of a loss that a user's own code has computed."""
        self._stored, self._computing = [False] * len(self._stored), True
        try:
            if self.progress.take is not None and self._calls.device.type == "cpu":
                self._watch(loss)
            else:
                loss.backward()
                self.end()
        finally:
            self._computing = False

    def collect(self, taken: Callable[[int], bool]) -> bool:
        """Complete the gradient with what PyTorch has accumulated in parameters; return whether there is any.

        Only those are `taken`, by their numbers, for which that returns True.
        """
        self._stored = [False] * len(self._stored)
        for number, parameter in enumerate(self._vector.parameters):
            if parameter.grad is not None and taken(number):
                self.store(number, parameter)
        found = any(self._stored)
        self.end()
        return found

    # Whole gradients.

    def compute(self, batch: Batch, inputs: Any, targets: Any) -> float:
        """Return the loss of a batch with these tensors, and compute its gradient."""
        self.begin(batch.number)
        try:
            return self._compute(batch, inputs, targets)
        finally:
            self._computing = False

    def _compute(self, batch: Batch, inputs: Any, targets: Any) -> float:
        if self._micro_batches == 1 and self.progress.take is not None and self._calls.device.type == "cpu":
            return self._watched(inputs, targets)
        if self._micro_batches == 1:
            loss = self._backward(inputs, targets)
        else:
            found, samples = pieces((inputs, targets), self._micro_batches)
            loss = 0.0
            for (of_inputs, of_targets), share in zip(found, batch.shares(found, samples), strict=True):
                loss += self._backward(of_inputs, of_targets, self._calls.share(of_targets, targets, share))
        self.end()
        self._vector.store_statistics()
        return loss

    def _watched(self, inputs: Any, targets: Any) -> float:
        loss = self._loss(inputs, targets)
        self._watch(loss)
        return self._calls.value(loss, targets)

    def _watch(self, loss: torch.Tensor) -> None:
        self.progress.begin(loss)
        loss.backward()
        self.progress.end()
        self.end()

    def _backward(self, inputs: Any, targets: Any, share: float = 1.0) -> float:
        if not share:
            return 0.0
        loss = self._loss(inputs, targets)
        if share != 1.0:
            loss = loss * share
        loss.backward()
        return self._calls.value(loss, targets)

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        with self._calls.precision():
            return self._calls.loss(self._calls.outputs(inputs), targets)
