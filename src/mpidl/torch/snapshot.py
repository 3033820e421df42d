"""Everything that a pass through a module may change of it, to be restored."""

from __future__ import annotations

from typing import Any

import torch

from mpidl.torch.beside import assign
from mpidl.torch.vector import Parts, tensors_in


class Snapshot:
    """The attributes of all modules, with the contents of their lists and mappings, and the values of all tensors."""

    def __init__(self, parts: Parts) -> None:
        tensors = (place.tensor for place in tensors_in(parts))
        self._values = {id(each): (each, each.detach().clone()) for each in tensors}
        owners = [vars(each) for part in parts.values() for each in part.modules()]
        inner = [each for owner in owners for each in owner.values() if isinstance(each, dict | list)]
        self._contents = [(each, each.copy()) for each in (*owners, *inner)]

    def restore(self) -> None:
        """Restore all that."""
        for container, contents in self._contents:
            if _members(container) == _members(contents):
                continue  # it may refuse changes
            container.clear()
            if isinstance(container, dict):
                container.update(contents)
            else:
                container.extend(contents)
        for tensor, values in self._values.values():
            assign(tensor, values)

    def changed(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has other values than before."""
        return not torch.equal(tensor, self._values[id(tensor)][1])


def _members(container: dict[Any, Any] | list[Any]) -> list[Any]:
    """Return what tells whether a container has other members than another."""
    if isinstance(container, dict):
        return [(key, id(value)) for key, value in container.items()]
    return [id(value) for value in container]
