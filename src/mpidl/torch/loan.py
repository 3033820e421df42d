"""A module on loan to a model: what the model needs of it while it computes, and how its owner gets it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock
from weakref import WeakSet

import torch
from torch.utils.hooks import RemovableHandle

from mpidl.torch.tables import Tables
from mpidl.torch.vector import Parts, tensors_in


class Loan:
    """A module that a model uses until `end`, or until another model takes over any of its tensors.

    Parameters
    ----------
    parts, others : mapping of str to torch.nn.Module
        What is lent, and what else is moved to the CPU.
    tables : Tables
        The tables of what is lent.
    settle : callable
        Gives the module its final values, before the loan ends.

    Attributes
    ----------
    active : bool
        Whether the loan hasn't ended.
    """

    def __init__(self, parts: Parts, others: Parts, tables: Tables, settle: Callable[[], None]) -> None:
        self._parts, self._others, self._settle, self.active = parts, others, settle, True
        self._tables = tables
        self._tensors = self._present() | tables.weights
        with _LOCK:
            loans = list(_LOANS)
        for other in loans:
            if not self._tensors.keys().isdisjoint(other._tensors):
                other.end()
        modules = [each for part in parts.values() for each in part.modules()]
        self._modes = [(each, each.training) for each in modules]
        tables.take()
        moved = {**parts, **others}
        self._devices = {place.name: place.tensor.device for place in tensors_in(moved)}
        for part in moved.values():
            part.to("cpu")
        self._tensors |= self._present()
        self._views: list[tuple[torch.Tensor, tuple[int, ...], bool]] = []
        self._hooks: list[RemovableHandle] = []
        with _LOCK:
            _LOANS.add(self)

    def _present(self) -> dict[int, torch.Tensor]:
        return {id(place.tensor): place.tensor for place in tensors_in(self._parts)}

    def lend(self, tensors: Iterable[torch.Tensor], hooks: Iterable[RemovableHandle]) -> None:
        """Note tensors that are about to become views of other memory or frozen, and hooks."""
        self._views += [(each, each.stride(), each.requires_grad) for each in tensors]
        self._hooks += hooks

    def end(self) -> None:
        """Give the module back: with memory of its own, and with the modes, flags, hooks and devices of before."""
        if not self.active:
            return
        self._settle()
        self.active = False
        with _LOCK:
            _LOANS.discard(self)
        for hook in self._hooks:
            hook.remove()
        for module, mode in self._modes:
            module.training = mode
        for tensor, strides, trained in self._views:
            tensor.data = _own(tensor.data, strides)
            if tensor.requires_grad is not trained:
                tensor.requires_grad_(trained)
        for place in tensors_in({**self._parts, **self._others}):
            if (device := self._devices.get(place.name)) not in (None, place.tensor.device):
                place.tensor.data = place.tensor.data.to(device)
        self._tables.give_back()


#: The loans that haven't ended. The hooks of a loan keep it alive as long as the module.
_LOANS = WeakSet[Loan]()
#: Held while the set is read or changed: threads may make models.
_LOCK = RLock()


def _own(values: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a copy of values in memory of its own, with these strides if they leave no gaps."""
    own = torch.empty_strided(values.shape, strides, dtype=values.dtype, device=values.device)
    dense = own.untyped_storage().nbytes() == values.numel() * values.element_size()
    return (own if dense else torch.empty_like(values)).copy_(values)
