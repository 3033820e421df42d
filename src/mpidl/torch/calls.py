"""Calls of a PyTorch module and of its loss, in training and in tests, and batches as their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from mpidl.data.batch import parts, seed_of_batch
from mpidl.errors import kind_of
from mpidl.nn.adaptation import ModelError
from mpidl.torch import losses
from mpidl.torch.vector import as_tensor


class Tensors:
    """Converts the arrays of a batch, nested in any tuples, lists and mappings, to tensors of a device.

    Arrays of floats get this dtype, in memory that is reused; tensors keep theirs.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._converted: dict[str, torch.Tensor] = {}

    def of(self, values: Any, place: str) -> Any:
        """Return `values` as tensors; `place` distinguishes them from others of the batch."""
        if isinstance(values, torch.Tensor):
            return values.to(self._device)
        if isinstance(values, tuple | list):
            return type(values)(self.of(each, f"{place}/{number}") for number, each in enumerate(values))
        if isinstance(values, Mapping):
            return {key: self.of(each, f"{place}/{key}") for key, each in values.items()}
        if not hasattr(values, "dtype") or not hasattr(values, "shape"):
            return values
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()
        tensor = as_tensor(values)
        if tensor.is_floating_point() and tensor.dtype is not self._dtype:
            tensor = self._convert(tensor, place)
        return tensor.to(self._device)

    def _convert(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        memory = self._converted.get(place)
        if memory is None or memory.shape[1:] != tensor.shape[1:] or len(memory) < len(tensor):
            memory = self._converted[place] = torch.empty(tensor.shape, dtype=self._dtype, device=tensor.device)
        return memory[: len(tensor)].copy_(tensor)


def pieces(values: Any, count: int) -> tuple[list[Any], list[int]]:
    """Return at most `count` pieces of nested tensors, and the number of samples in each.

    Raise ValueError if the tensors differ in length, or there are none.
    """
    lengths = {len(each) for each in _tensors(values) if each.dim()}
    if len(lengths) != 1:
        found = f"tensors of {min(lengths)} and of {max(lengths)} samples" if lengths else "no tensors"
        raise ValueError(f"model.micro_batches: the batch has {found}, expected tensors of one length")
    slices = parts(lengths.pop(), count)
    made = [_mapped(values, lambda tensor, part=part: tensor[part] if tensor.dim() else tensor) for part in slices]  # type: ignore[misc]
    return made, [part.stop - part.start for part in slices]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list | Mapping):
        for each in values.values() if isinstance(values, Mapping) else values:
            yield from _tensors(each)


def _mapped(values: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(values, torch.Tensor):
        return function(values)
    if isinstance(values, tuple | list):
        return type(values)(_mapped(each, function) for each in values)
    if isinstance(values, Mapping):
        return {key: _mapped(each, function) for key, each in values.items()}
    return values


class Calls:
    """A module and a loss, with the settings of a `mpidl.torch.TorchModel`.

    Attributes
    ----------
    call : callable
        The module, compiled if `compile`.
    device : torch.device
        The device of the parameters.
    """

    def __init__(
        self, module: torch.nn.Module, loss: losses.Loss, name: str, seed: int, autocast: str | None, compile: bool
    ) -> None:
        self._module, self._loss, self._name, self._seed, self._autocast = module, loss, name, seed, autocast
        self.call: Any = torch.compile(module) if compile else module
        self.device = torch.device("cpu")
        self._training: bool | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context in which forward passes compute in the precision of `autocast`."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def outputs(self, inputs: Any) -> Any:
        """Call the module with a batch's inputs."""
        if isinstance(inputs, tuple | list):
            return self.call(*inputs)
        return self.call(**inputs) if isinstance(inputs, dict) else self.call(inputs)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss, a tensor with one element; ModelError if it is something else, or the shapes don't match."""
        if losses.is_one_of(losses.ELEMENTWISE, self._loss) and outputs.shape != targets.shape:
            raise ModelError(
                f"{self._name}: outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, "
                f"expected the same for {getattr(self._loss, '__name__', self._loss)}"
            )
        loss = self._loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            tensor = isinstance(loss, torch.Tensor)
            found = f"of shape {tuple(loss.shape)}" if tensor else kind_of(loss)
            raise ModelError(f"{self._name}: the loss is {found}, expected a tensor with one element, the batch's mean")
        return loss

    def share(self, part: Any, targets: Any, samples: float) -> float:
        """Return the share of a part of the targets in the loss of all; `samples` is that of its samples."""
        if losses.is_sum(self._loss):
            return 1.0
        whole = losses.weight(self._loss, targets, 1.0)
        return losses.weight(self._loss, part, samples) / whole if whole else samples

    def set_mode(self, training: bool) -> None:
        """Put the module into training or evaluation mode."""
        if self._training is not training:
            self._training = training
            self._module.train(training)

    def seed_by(self, number: int) -> None:
        """Seed the generators of random numbers for a batch."""
        seed = seed_of_batch(self._seed, number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
