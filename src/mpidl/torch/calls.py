"""Calls of a PyTorch module and of its loss, in training and in tests, and batches as their arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from mpidl.data.batch import parts, seed_of_batch
from mpidl.data.nested import parts_of, rebuilt
from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError, kind_of
from mpidl.nn.adaptation import ModelError, weighted
from mpidl.torch import losses
from mpidl.torch.arrays import as_tensor


class TorchBags(NamedTuple):
    """Bags of ids as `torch.nn.EmbeddingBag` takes them: all ids, and where each bag begins; both int64."""

    input: torch.Tensor
    offsets: torch.Tensor

    def part(self, bags: slice) -> TorchBags:
        """Return some of the bags."""
        ends = torch.cat([self.offsets, self.offsets.new_tensor([len(self.input)])])[bags.start : bags.stop + 1]
        return TorchBags(self.input[int(ends[0]) : int(ends[-1])], ends[:-1] - ends[0])


class TensorConverter:
    """Converts the arrays of a batch, nested in tuples, lists, mappings and dataclasses, to tensors of a device.

    Arrays of floats get this dtype, in memory that is reused; tensors keep theirs. A `Ragged` becomes `TorchBags`.
    Whatever has a method ``to``, such as a packed sequence or a graph, moves itself. Texts, times and other objects
    stay as they are.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._converted: dict[str, torch.Tensor] = {}

    def of(self, values: Any, place: str) -> Any:
        """Return `values` as tensors; `place` distinguishes them from others of the batch.

        Raises
        ------
        ModelError
            One is a matrix of SciPy.
        """
        if isinstance(values, np.ndarray | np.generic):
            return self._of_array(_suitable(values), place) if values.dtype.kind in "biufc" else values
        if callable(getattr(values, "to", None)):
            return values.to(self._device)
        if isinstance(values, Ragged):
            return TorchBags(self.of(values.values, place), self.of(values.offsets[:-1], place))
        if (parts := parts_of(values)) is not None:
            return rebuilt(values, {key: self.of(each, f"{place}/{key}") for key, each in parts.items()})
        if hasattr(values, "toarray"):
            expected = "a tensor, such as of torch.sparse_csr_tensor, or an array, as its method toarray() returns it"
            raise ModelError(f"{place} of a batch: {kind_of(values)}, expected {expected}")
        return self._of_array(values, place) if hasattr(values, "dtype") and hasattr(values, "shape") else values

    def _of_array(self, array: Any, place: str) -> torch.Tensor:
        tensor = as_tensor(array)
        if tensor.is_floating_point() and tensor.dtype is not self._dtype:
            tensor = self._convert(tensor, place) if tensor.dim() else tensor.to(self._dtype)
        return tensor.to(self._device)

    def _convert(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        memory = self._converted.get(place)
        if memory is None or memory.shape[1:] != tensor.shape[1:] or len(memory) < len(tensor):
            memory = self._converted[place] = torch.empty(tensor.shape, dtype=self._dtype, device=tensor.device)
        return memory[: len(tensor)].copy_(tensor)


def _suitable(array: np.ndarray | np.generic) -> np.ndarray:
    """Return an array itself, or as a copy that PyTorch takes: writable, in native byte order, without steps back."""
    if not isinstance(array, np.ndarray):
        return np.asarray(array)
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def pieces(values: Any, count: int) -> tuple[list[Any], list[int]]:
    """Return at most `count` pieces of nested tensors, and the number of samples in each.

    Raise ValueError if the tensors differ in length, or there are none.
    """
    lengths = set(_lengths(values))
    if len(lengths) != 1:
        found = f"tensors of {min(lengths)} and of {max(lengths)} samples" if lengths else "no tensors"
        raise ValueError(f"model.micro_batches: the batch has {found}, expected tensors of one length")
    slices = parts(lengths.pop(), count)
    made = [_part(values, part) for part in slices]
    return made, [part.stop - part.start for part in slices]


def _lengths(values: Any) -> Iterator[int]:
    """Yield the number of samples in each of nested tensors."""
    if isinstance(values, torch.Tensor | TorchBags):
        tensor = values.offsets if isinstance(values, TorchBags) else values
        yield from tensor.shape[:1]
    else:
        for each in (parts_of(values) or {}).values():
            yield from _lengths(each)


def _part(values: Any, samples: slice) -> Any:
    """Return some samples of nested tensors."""
    if isinstance(values, torch.Tensor):
        return values[samples] if values.dim() else values
    if isinstance(values, TorchBags):
        return values.part(samples)
    if isinstance(values, PackedSequence) or (parts_of(values) is None and hasattr(values, "to")):
        raise ModelError(f"model.micro_batches can't divide a batch with {kind_of(values)}, expected 1")
    if (parts := parts_of(values)) is not None:
        return rebuilt(values, {key: _part(each, samples) for key, each in parts.items()})
    return values


def check_compiled(module: torch.nn.Module, name: str) -> None:
    """Raise UsageError for a module of TorchScript with parameters to train: they can't become views of a vector."""
    for path, each in module.named_modules():
        trained = any(parameter.requires_grad for parameter in each.parameters())
        if trained and isinstance(each, torch.jit.ScriptModule):
            which = f": its module {path} is" if path else " is"
            expected = "expected the module that it was made of; model.compile = true compiles it by torch.compile"
            raise UsageError(f"{name}{which} compiled by torch.jit, {expected}")


class Calls:
    """A module and a loss, with the settings of a `mpidl.torch.TorchModel`.

    `parts` are the module and, if the loss has parameters to train, the module of the loss.

    Attributes
    ----------
    call : callable
        The module, compiled if `compile`.
    device : torch.device
        The device of the parameters.
    terms : dict of str to torch.Tensor
        The terms of the last loss, if it has some.
    """

    def __init__(
        self, parts: Sequence[torch.nn.Module], loss: losses.Loss, name: str, seed: int, autocast: str | None,
        compile: bool, weights: Mapping[str, float],
    ) -> None:  # fmt: skip
        self._parts, self._loss, self._name, self._seed, self._autocast = parts, loss, name, seed, autocast
        module = parts[0]
        self.call: Any = torch.compile(module) if compile else module
        self._weights, self.terms = weights, dict[str, torch.Tensor]()
        self.begin(torch.device("cpu"))

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context in which forward passes compute in the precision of `autocast`."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def outputs(self, inputs: Any) -> Any:
        """Call the module with a batch's inputs."""
        if isinstance(inputs, tuple | list) and not isinstance(inputs, PackedSequence):
            return self.call(*inputs)
        return self.call(**inputs) if isinstance(inputs, Mapping) else self.call(inputs)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss, a tensor with one element; ModelError if it is something else, or the shapes don't match.

        It is the sum of the terms, times their weights, if the loss is a mapping.
        """
        if (found := losses.mismatch(self._loss, outputs, targets)) is not None:
            raise ModelError(f"{self._name}: {found}")
        loss = self._loss(outputs, targets)
        terms = loss if isinstance(loss, Mapping) and loss else {}
        self.terms = {name: self._mean(term, f"term {name} of the loss") for name, term in terms.items()}
        total = weighted(self.terms, self._weights, self._name)
        return total if terms else self._mean(loss, "loss")

    def _mean(self, loss: Any, what: str) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            tensor = isinstance(loss, torch.Tensor)
            found = f"of shape {tuple(loss.shape)}" if tensor else kind_of(loss)
            expected = "expected a tensor with one element, the batch's mean"
            raise ModelError(f"{self._name}: the {what} is {found}, {expected}")
        return loss

    def value(self, loss: torch.Tensor, targets: Any) -> float:
        """Return the loss of these targets as a number: the mean over none, NaN for PyTorch, is 0."""
        value = float(loss.item())
        return 0.0 if isnan(value) and not losses.weight(self._loss, targets, 1.0) else value

    def share(self, part: Any, targets: Any, samples: float) -> float:
        """Return a micro-batch's weight in the loss; `samples` is its share of the batch's samples."""
        if losses.is_sum(self._loss):
            return 1.0
        whole = losses.weight(self._loss, targets, 1.0)
        return losses.weight(self._loss, part, samples) / whole if whole else samples

    def begin(self, device: torch.device) -> None:
        """Compute on this device from now on."""
        self.device = device
        self._training: bool | None = None

    def set_mode(self, training: bool) -> None:
        """Put the modules into training or evaluation mode, unless they are in it since the last call."""
        if self._training is not training or self._parts[0].training is not training:
            self._training = training
            for part in self._parts:
                part.train(training)

    def seed_by(self, number: int) -> None:
        """Seed the generators of random numbers for a batch."""
        seed = seed_of_batch(self._seed, number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
