"""The factors of a module's gradient: what its linear layers had as inputs, and the gradients of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from mpidl.data.batch import Batch
from mpidl.torch.vector import Vector
from mpidl.wire import Factors, Matrix


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """A linear layer that gives its factors away in the place of its weight's gradient, if they are taken."""

    @staticmethod
    def forward(ctx: Any, inputs: Any, weight: Any, bias: Any, layer: FactoredLayer) -> Any:
        ctx.save_for_backward(inputs, weight)
        ctx.layer = layer
        return torch.nn.functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, output_gradient: Any) -> tuple[Any, ...]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias, _ = ctx.needs_input_grad
        taken = of_weight and ctx.layer.take(inputs, output_gradient)
        return (
            output_gradient @ weight if of_inputs else None,
            output_gradient.T @ inputs if of_weight and not taken else None,
            output_gradient.sum(0) if of_bias else None,
            None,
        )


class FactoredLayer:
    """A linear layer whose weight nothing else uses.

    Parameters
    ----------
    layer : torch.nn.Linear
    number : int
        The weight's index among the parameters.
    start : int
        The weight's first element in the vector.

    Attributes
    ----------
    matrix : Matrix
        PyTorch's weight is (outputs, inputs), so that its rows are the layer's outputs.
    calls : int
        Number of calls in the present forward pass.
    samples : int
        Number of samples in the last call; 0 if its inputs were no matrix, or PyTorch was asked for no gradient.
    taken : callable or None
        If given, called with the layer when the backward pass has reached it.
    only : bool
        Whether the weight's gradient isn't needed then.
    """

    def __init__(self, layer: torch.nn.Linear, number: int, start: int) -> None:
        self._layer, self.number = layer, number
        self.matrix = Matrix(start, layer.out_features, layer.in_features)
        self._forget()

    def _forget(self) -> None:
        self.calls = self.samples = 0
        self.taken: Callable[[FactoredLayer], None] | None = None
        self.only = False
        self._factors: tuple[Any, Any] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let the module call this layer's `forward`, and forget earlier calls."""
        self._forget()
        self._layer.forward = self.forward
        try:
            yield
        finally:
            del self._layer.forward

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Do what the layer's own method does."""
        layer = self._layer
        self.calls += 1
        if inputs.dim() != 2 or not torch.is_grad_enabled():
            self.samples = 0
            return torch.nn.functional.linear(inputs, layer.weight, layer.bias)
        self.samples = len(inputs)
        output: torch.Tensor = _Linear.apply(inputs, layer.weight, layer.bias, self)
        return output

    def take(self, inputs: torch.Tensor, output_gradient: torch.Tensor) -> bool:
        """Take the factors, if they are wanted; return whether they are enough."""
        if self.taken is None:
            return False
        self._factors = output_gradient.detach(), inputs.detach()
        self.taken(self)
        return self.only

    @property
    def has_factors(self) -> bool:
        """Whether the backward pass has reached the layer."""
        return self._factors is not None

    def factors(self, samples: int) -> Factors:
        """Return the layer's factors; zeros, if the backward pass has not reached it."""
        if self._factors is None:
            dtype = self._layer.weight.detach().numpy().dtype
            return Factors(samples, *(np.zeros((samples, size), dtype) for size in self.matrix[1:]))
        return Factors(samples, *(each.numpy() for each in self._factors))


class FactoredLayers:
    """The layers of a module whose gradients may travel in factors.

    These are the `torch.nn.Linear` with a weight that is trained and that no other layer shares. Whether a layer is
    called once for a batch, with a matrix, a forward pass shows: `keep` drops those that are not.

    Parameters
    ----------
    module : torch.nn.Module
    vector : Vector
    """

    def __init__(self, module: torch.nn.Module, vector: Vector) -> None:
        numbers = {id(each): number for number, each in enumerate(vector.parameters)}
        starts = [part.range.start for part in vector.layout]
        users = [id(each) for owner in module.modules() for each in owner._parameters.values()]
        self._layers = []
        for each in module.modules():
            if type(each) is torch.nn.Linear and "forward" not in vars(each):
                number = numbers.get(id(each._parameters.get("weight")))
                if number is not None and users.count(id(each.weight)) == 1:
                    self._layers.append(FactoredLayer(each, number, starts[number]))
        self._layers.sort(key=lambda layer: layer.number)

    def matrices(self) -> list[Matrix]:
        return [layer.matrix for layer in self._layers]

    @contextmanager
    def watched(self, only: Collection[int]) -> Iterator[list[FactoredLayer]]:
        """Watch the layers while the module is called; of the weights that begin here, no gradient is needed."""
        with ExitStack() as stack:
            for each in self._layers:
                stack.enter_context(each.watched())
                each.only = each.matrix.start in only
            yield self._layers

    def keep(self, layers: list[FactoredLayer]) -> None:
        """Keep these layers alone."""
        self._layers = layers


def samples_of(layers: Sequence[FactoredLayer], batch: Batch) -> int:
    """Return the samples of a batch if each layer has been called once with a row for each of them, else 0."""
    if not layers or not isinstance(batch.inputs, np.ndarray):
        return 0
    samples = len(batch.inputs)
    return samples if all(each.calls == 1 and each.samples == samples for each in layers) else 0
