"""The gradients of a PyTorch module."""

from __future__ import annotations

from typing import Any

import torch

from mpidl.data.batch import Batch
from mpidl.nn.adaptation import ModelError
from mpidl.torch.batches import pieces
from mpidl.torch.calls import Calls
from mpidl.torch.progress import BackwardProgress
from mpidl.torch.vector import Vector


class Gradients:
    """Computes gradients of a module's parameters, which move into the flat gradient as soon as each is complete.

    Parameters
    ----------
    vector : Vector
        The module's tensors.
    calls : Calls
    name : str
        How messages call the module.
    micro_batches : int
        Number of pieces in which a batch is computed.

    Attributes
    ----------
    progress : BackwardProgress
        Watches the backward passes of whole batches on the CPU.
    """

    def __init__(self, vector: Vector, calls: Calls, name: str, micro_batches: int) -> None:
        self._vector, self._calls, self._name, self._micro_batches = vector, calls, name, micro_batches
        self.progress = BackwardProgress(vector, name)
        self._stored = [False] * len(vector.parameters)
        for number, parameter in enumerate(vector.parameters):
            parameter.grad = None
            parameter.register_post_accumulate_grad_hook(lambda each, number=number: self.store(number, each))

    # The steps of a gradient.

    def begin(self, number: int) -> None:
        """Make ready for the gradient of the batch of this number.

        Raises
        ------
        ModelError
            A parameter is another now.
        """
        if (stray := self._vector.stray()) is not None:
            raise ModelError(f"{self._name} has replaced its parameter {stray}, expected it to be changed in place")
        self._calls.set_mode(training=True)
        self._calls.seed_by(number)
        self._vector.load_statistics()
        self._stored = [False] * len(self._stored)

    def store(self, number: int, parameter: torch.Tensor) -> None:
        """Move a parameter's gradient, which is complete, into the flat gradient."""
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

    def fill(self) -> None:
        """Let the gradient be 0 where nothing has been stored."""
        if not all(self._stored):
            for stored, gradient in zip(self._stored, self._vector.gradients, strict=True):
                if not stored:
                    gradient.zero_()

    # Whole gradients.

    def compute(self, batch: Batch, inputs: Any, targets: Any) -> float:
        """Return the loss of a batch, whose tensors these are, and compute its gradient."""
        self.begin(batch.number)
        if self._micro_batches == 1 and self.progress.take is not None and self._calls.device.type == "cpu":
            return self._watched(inputs, targets)
        if self._micro_batches == 1:
            loss = self._backward(inputs, targets)
        elif batch.weight is not None:
            remedy = "use smaller batches, and push the sum of several (algorithm.n_push)"
            raise ModelError(f"{self._name}: model.micro_batches can't cut a batch with a weight of its own: {remedy}")
        else:
            loss = sum(
                self._backward(some_inputs, some_targets, share)
                for (some_inputs, some_targets), share in pieces((inputs, targets), self._micro_batches)
            )
        self.fill()
        self._vector.store_statistics()
        return loss

    def _watched(self, inputs: Any, targets: Any) -> float:
        loss = self._loss(inputs, targets)
        self.progress.begin(loss)
        loss.backward()
        self.progress.end()
        self.fill()
        return float(loss.item())

    def _backward(self, inputs: Any, targets: Any, share: float = 1.0) -> float:
        loss = self._loss(inputs, targets)
        if share != 1.0:
            loss = loss * share
        loss.backward()
        return float(loss.item())

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        with self._calls.precision():
            return self._calls.loss(self._calls.outputs(inputs), targets)
