"""Batches as tensors, without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mpidl.nn.frameworks import parts
from mpidl.torch.vector import as_tensor


class Tensors:
    """Makes tensors of the arrays of a batch, in whatever tuples, lists and mappings they lie.

    Arrays of floats get the module's dtype; for those of another, memory is kept. Tensors stay as they are, but for
    their device.

    Parameters
    ----------
    dtype : torch.dtype
    device : torch.device
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._converted: dict[str, torch.Tensor] = {}

    def of(self, values: Any, place: str) -> Any:
        """Return `values` as tensors; `place` tells them from the others of the batch."""
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


def pieces(values: Any, count: int) -> Iterator[tuple[Any, float]]:
    """Yield at most `count` pieces of nested tensors, each with its share of the samples."""
    for part, share in parts(_samples(values), count):
        yield _mapped(values, lambda tensor, part=part: tensor[part]), share  # type: ignore[misc]


def _samples(values: Any) -> int:
    """Return the length of the first tensor."""
    if isinstance(values, torch.Tensor):
        return len(values)
    return _samples(next(iter(values.values() if isinstance(values, Mapping) else values)))


def _mapped(values: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(values, torch.Tensor):
        return function(values)
    if isinstance(values, tuple | list):
        return type(values)(_mapped(each, function) for each in values)
    if isinstance(values, Mapping):
        return {key: _mapped(each, function) for key, each in values.items()}
    return values
