"""The tensors of a module, with the trained ones as views of a flat vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from mpidl.errors import UsageError
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range

#: Dtypes of vectors.
DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class Vector:
    """A module's parameters as views of a flat vector, and the vector's gradient.

    The vector also has the module's statistics, its float buffers, after the parameters. The module changes copies of
    these, which `load_statistics` and `store_statistics` synchronise.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters become views of the vector.
    name : str
        Its name in messages.

    Attributes
    ----------
    parameters : list of torch.nn.Parameter
        The trained parameters.
    gradients : list of torch.Tensor
        A view of the gradient for each of `parameters`.
    layout : Layout
        The tensors of the vector, by their names in the module's ``state_dict``.
    statistics : list of Range
        The range of the statistics, if there are any.
    aliases : dict of str
        Other names of tensors in the layout, those of tied weights.
    constants : dict of torch.Tensor
        Frozen parameters, and float buffers that can't be averaged: of another dtype, or infinite, such as masks.
    counters : dict of torch.Tensor
        Buffers that aren't floats.
    dtype : numpy.dtype
    array : array (layout.size,)
        The vector.
    gradient : array (layout.size,)

    Raises
    ------
    UsageError
        No parameter can be trained, or one has a dtype that vectors can't have.
    """

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        self._module = module
        named = dict(module.named_parameters())
        trained = {key: each for key, each in named.items() if each.requires_grad}
        self.parameters = list(trained.values())
        self._dtype = _dtype(name, named, trained)
        self.dtype: np.dtype[Any] = DTYPES[self._dtype]
        buffers = dict(_saved_buffers(module))
        statistics = {key: each for key, each in buffers.items() if self._is_statistic(each)}
        self._statistics = statistics
        self.constants = {key: each for key, each in named.items() if not each.requires_grad} | {
            key: each for key, each in buffers.items() if each.is_floating_point() and key not in statistics
        }
        self.counters = {key: each for key, each in buffers.items() if not each.is_floating_point()}
        self.layout = Layout([(key, tuple(each.shape)) for key, each in (trained | statistics).items()])
        self.aliases = _aliases(module, trained | statistics)
        start = sum(each.numel() for each in self.parameters)
        self._averaged = slice(start, self.layout.size)
        self.statistics = [Range(start, self.layout.size)] if statistics else []
        ordinals = {id(each): number for number, each in enumerate(self.parameters)}
        self._places = [
            (owner._parameters, key, f"{prefix}.{key}" if prefix else key, each, ordinals[id(each)])
            for prefix, owner in module.named_modules()
            for key, each in owner._parameters.items()
            if id(each) in ordinals
        ]
        self._take_over()

    def _is_statistic(self, buffer: torch.Tensor) -> bool:
        return buffer.dtype is self._dtype and bool(torch.isfinite(buffer).all())

    def _take_over(self) -> None:
        """Create the vector, the gradient and the module's own statistics, with the module's values."""
        values = np.empty(self.layout.size, self.dtype)
        tensors = [each.detach() for each in (*self.parameters, *self._statistics.values())]
        for view, each in zip(_views(values, tensors), tensors, strict=True):
            view.copy_(each)
        self._use_own(torch.from_numpy(values[self._averaged].copy()))
        self.gradient: Any = np.zeros_like(values)
        self.gradients = list(_views(self.gradient, self.parameters))
        self._changes = as_tensor(self.gradient)[self._averaged]
        self.replace(values)

    def _use_own(self, values: torch.Tensor) -> None:
        """Make the module's own statistics views of a vector with their values."""
        self._own, self._loaded, statistics = values, values.clone(), list(self._statistics.values())
        for view, each in zip(_views(values, statistics), statistics, strict=True):
            each.data = view

    def replace(self, array: Any) -> None:
        """Make the parameters views of another vector, with its values."""
        self.array, self._fetched = array, as_tensor(array)[self._averaged]
        for view, each in zip(_views(array, self.parameters), self.parameters, strict=True):
            each.data = view
        self._addresses = [each.data_ptr() for each in self.parameters]

    def move(self, xp: Any) -> None:
        """Move the module to the device of CuPy's arrays."""
        values = xp.asarray(self.array)
        device = as_tensor(values).device
        self._module.to(device)
        # Parameters remain the same objects, but buffers don't.
        buffers = dict(_saved_buffers(self._module))
        for known in (self._statistics, self.counters, self.constants):
            known.update((key, buffers[key]) for key in known.keys() & buffers.keys())
        self._use_own(self._own.to(device))
        self.gradient = xp.zeros_like(values)
        self.gradients = list(_views(self.gradient, self.parameters))
        self._changes = as_tensor(self.gradient)[self._averaged]
        self.replace(values)

    def stray(self) -> str | None:
        """Return the name of a parameter that the module has replaced, or moved out of the vector, if any."""
        addresses = self._addresses
        for owner, key, name, parameter, ordinal in self._places:
            if owner.get(key) is not parameter or parameter.data_ptr() != addresses[ordinal]:
                return name
        return None

    def load_statistics(self) -> None:
        """Copy the statistics of the vector, which others may change at any time, into the module."""
        if self.statistics:
            self._loaded.copy_(self._fetched)
            self._own.copy_(self._loaded)

    def store_statistics(self) -> None:
        """Set the gradient of the statistics to the module's changes, with the opposite sign."""
        if self.statistics:
            torch.sub(self._loaded, self._own, out=self._changes)

    def store_statistics_again(self) -> bool:
        """Do the same as `store_statistics`, on the host, and return whether the gradient has changed."""
        if not self.statistics:
            return False
        self._before.copy_(self._changes)
        self.store_statistics()
        # Compare bits: no NaN equals itself.
        return not torch.equal(self._before.view(torch.uint8), self._changes.view(torch.uint8))

    @cached_property
    def _before(self) -> torch.Tensor:
        return torch.empty_like(self._changes)


def as_tensor(array: Any) -> torch.Tensor:
    """Return a NumPy or CuPy array as a tensor of the same memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def _views(vector: Any, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield a view of a flat vector for each tensor, one after another."""
    flat = vector if isinstance(vector, torch.Tensor) else as_tensor(vector)
    start = 0
    for each in tensors:
        yield flat[start : start + each.numel()].view(each.shape)
        start += each.numel()


def _dtype(
    name: str, named: Mapping[str, torch.nn.Parameter], trained: Mapping[str, torch.nn.Parameter]
) -> torch.dtype:
    """Return the dtype of the trained parameters."""
    if not trained:
        found = "frozen parameters only" if named else "no parameters"
        raise UsageError(f"{name} has {found}, expected at least one to train")
    for key, each in named.items():
        if torch.nn.parameter.is_lazy(each) or each.is_meta:
            raise UsageError(f"{name}: parameter {key} has no values yet: pass a batch through the module first")
    first = next(iter(trained))
    for key, each in trained.items():
        found = str(each.dtype).removeprefix("torch.")
        if each.dtype not in DTYPES:
            remedy = " (model.autocast computes in bfloat16)" if each.is_floating_point() else ""
            raise UsageError(f"{name}: parameter {key} is {found}, expected float32 or float64{remedy}")
        if each.dtype is not trained[first].dtype:
            raise UsageError(f"{name}: parameter {key} is {found}, expected {DTYPES[trained[first].dtype]} as {first}")
    return trained[first].dtype


def _saved_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that a ``state_dict`` has."""
    for prefix, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None and key not in owner._non_persistent_buffers_set:
                yield f"{prefix}.{key}" if prefix else key, buffer


def _aliases(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    names = {id(each): name for name, each in tensors.items()}
    everywhere = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: names[id(each)] for name, each in everywhere if names.get(id(each), name) != name}
