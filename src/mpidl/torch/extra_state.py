"""The extra state of modules, beside their tensors: what ``get_extra_state`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mpidl.torch.arrays import as_array

#: The last part of its name in a ``state_dict``.
SUFFIX = "_extra_state"


class ExtraState:
    """The extra state of a module as a state of numbers and arrays by name; one that is no mapping has the name ""."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state(self) -> dict[str, Any]:
        """Return the arrays and numbers by name."""
        found = self._values()
        return {name: as_array(each) if isinstance(each, torch.Tensor) else each for name, each in found.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Give the module a state of the types that its present one has."""
        present = self._values()
        values = {
            name: torch.as_tensor(each) if isinstance(present.get(name), torch.Tensor) else each
            for name, each in state.items()
        }
        self._module.set_extra_state(values[""] if values.keys() == {""} else values)

    def _values(self) -> dict[str, Any]:
        found = self._module.get_extra_state()
        if found is None:
            return {}
        return {str(name): each for name, each in found.items()} if isinstance(found, Mapping) else {"": found}


def has_extra_state(module: torch.nn.Module) -> bool:
    """Whether the class of a module has an extra state."""
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def full_name(module: str, key: str = "") -> str:
    """Return the name of a module's extra state, or of one part of it."""
    return ".".join(part for part in (module, SUFFIX, key) if part)


def is_name(name: str) -> bool:
    """Whether a name is that of an extra state, or of one part of it."""
    return SUFFIX in name.split(".")


def put_together(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return tensors with the parts of each extra state replaced by it; its tensors without axes become numbers."""
    made: dict[str, Any] = {}
    for name, tensor in tensors.items():
        value = tensor.item() if not tensor.ndim else tensor
        module, found, key = f".{name}".partition(f".{SUFFIX}.")
        if found:
            made.setdefault(full_name(module[1:]), {})[key] = value
        else:
            made[name] = value if f".{name}".endswith(f".{SUFFIX}") else tensor
    return made
