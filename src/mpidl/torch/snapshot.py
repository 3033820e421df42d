"""Everything that a pass through a module may change of it, to be restored."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import torch

from mpidl.torch.beside import assign
from mpidl.torch.vector import Parts, tensors_in

#: Generators of random numbers, and their methods that return and restore the state.
_GENERATORS: tuple[tuple[Any, str, str], ...] = (
    (torch.Generator, "get_state", "set_state"),
    ((random.Random, np.random.RandomState, np.random.BitGenerator), "__getstate__", "__setstate__"),
)


class Snapshot:
    """All modules' attributes, the contents of containers, states of random generators and the values of tensors."""

    def __init__(self, parts: Parts) -> None:
        tensors = (place.tensor for place in tensors_in(parts))
        self._values = {id(each): (each, each.detach().clone()) for each in tensors}
        owners = [vars(each) for part in parts.values() for each in part.modules()]
        inner = [each for owner in owners for each in owner.values()]
        containers = [each for each in inner if isinstance(each, dict | set | list | deque)]
        self._contents = [(each, each.copy()) for each in (*owners, *containers)]
        self._states = [
            (getattr(each, write), getattr(each, read)())
            for kinds, read, write in _GENERATORS
            for each in (each.bit_generator if isinstance(each, np.random.Generator) else each for each in inner)
            if isinstance(each, kinds)
        ]

    def restore(self) -> None:
        """Restore all that."""
        for container, contents in self._contents:
            if _members(container) == _members(contents):
                continue  # it may refuse changes
            container.clear()
            if isinstance(container, dict | set):
                container.update(contents)
            else:
                container.extend(contents)
        for restore, state in self._states:
            restore(state)
        for tensor, values in self._values.values():
            assign(tensor, values)

    def changed(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has other values than before."""
        return not torch.equal(tensor, self._values[id(tensor)][1])


def _members(container: Any) -> Any:
    """Return what tells whether a container has other members than another."""
    if isinstance(container, dict):
        return [(key, id(value)) for key, value in container.items()]
    members = [id(value) for value in container]
    return set(members) if isinstance(container, set) else members
