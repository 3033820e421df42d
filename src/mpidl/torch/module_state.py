"""What a module has besides the vector: tensors that training leaves alone or the module changes, and other state."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
import xxhash

from mpidl.data.kept import METHODS, KeptState, methods
from mpidl.torch.arrays import as_array, dense, put_together, taken_apart
from mpidl.torch.vector import Parts, Place, owner_of, parameters_in, parts_of, tensors_in

Kind = Literal["constant", "counter", "private"]


class ModuleState:
    """The tensors and other state of a module outside the vector.

    Its constants are frozen parameters, and float buffers that are no running means of a normalisation, such as masks
    and the vectors of spectral norm. Its counters are the other
    buffers. Its private tensors are in no export: buffers with ``persistent=False``, and the tensors of modules beside
    it that have nothing to train. So is the state of a module, a submodule or a loss with ``state()`` and
    ``load_state()``; a dot before a name tells it from those of tensors. So are extra states of modules, which exports
    of PyTorch have.

    Parameters
    ----------
    trained, others : mapping of str to torch.nn.Module
        Modules with parameters in the vector, and without.
    names : collection of str
        Names of tensors in the vector.
    """

    def __init__(self, trained: Parts, others: Parts, names: Collection[str]) -> None:
        self._parts = {**trained, **others}
        self._kinds: dict[str, Kind] = {}
        private = {place.name for place in tensors_in(others)}
        for place in tensors_in(self._parts):
            if place.name in private or not place.saved:
                self._kinds[place.name] = "private"
            elif place.name not in names:
                self._kinds[place.name] = "constant" if place.tensor.is_floating_point() else "counter"
        self._states = {
            f"{name}.." if name else ".": KeptState(module, f"model: {type(module).__name__}")
            for prefix, part in self._parts.items()
            for name, module in _with_states(part, prefix)
        }
        self._extra = {
            name: KeptState(ExtraState(module), f"model: {type(module).__name__}.get_extra_state")
            for prefix, part in trained.items()
            for name, module in part.named_modules(prefix=prefix)
            if has_extra_state(module)
        }
        self._begun: dict[str, bytes] | None = None
        self._loaded = set[str]()

    def _places(self, kind: Kind | None = None) -> Iterator[Place]:
        """Yield the present places: the module may have assigned tensors and modules anew."""
        for place in tensors_in(self._parts):
            if (own := self._kinds.get(place.name)) is not None and kind in (None, own):
                yield place

    def begin(self) -> None:
        """Note the values with which training begins; only the first call does something."""
        if self._begun is None:
            kept = (place for place in self._places() if self._kinds[place.name] != "counter")
            self._begun = {place.name: _digest(place.tensor) for place in kept}

    def _changed(self, place: Place) -> bool:
        """Whether the module, or a checkpoint, has changed a tensor since training began."""
        return place.name in self._loaded or (
            self._begun is not None and _digest(place.tensor) != self._begun.get(place.name)
        )

    def constants(self) -> dict[str, np.ndarray]:
        """Return the constants' values by name."""
        return _arrays(self._places("constant"))

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the values of the counters, and of the constants that the module has changed."""
        changed = [place for place in self._places("constant") if self._changed(place)]
        return _arrays([*self._places("counter"), *changed])

    def private(self) -> dict[str, np.ndarray]:
        """Return the states and the private tensors, while training only those that the module has changed."""
        found = _arrays(each for each in self._places("private") if self._begun is None or self._changed(each))
        for begin, kept in self._states.items():
            found |= {f"{begin}{name}": own for name, own in kept.state().items()}
        for module, kept in self._extra.items():
            found |= {extra_state_name(module, key): own for key, own in kept.state().items()}
        return found

    def load(self, values: Mapping[str, Any], *, changed: bool = True) -> None:
        """Copy values into the tensors of their names, as `changed` ones or as those to begin with; restore states."""
        for begin, kept in self._states.items():
            if own := {name.removeprefix(begin): each for name, each in values.items() if name.startswith(begin)}:
                kept.load(own)
        for module, kept in self._extra.items():
            begin = extra_state_name(module)
            own = {name[len(begin) + 1 :]: each for name, each in values.items() if f"{name}.".startswith(f"{begin}.")}
            if own:
                kept.load(own)
        tensors = put_together({name: torch.as_tensor(array) for name, array in values.items()})
        for place in self._places():
            if place.name in tensors:
                assign(place.tensor, tensors[place.name])
        if changed:
            self._loaded |= tensors.keys()


def _arrays(places: Iterable[Place]) -> dict[str, np.ndarray]:
    apart = (taken_apart(place.name, place.tensor.detach()) for place in places)
    return {name: as_array(tensor) for tensors in apart for name, tensor in tensors.items()}


def _digest(tensor: torch.Tensor) -> bytes:
    parts = taken_apart("", tensor.detach()).values()
    bits = (dense(part).contiguous().reshape(-1).view(torch.uint8).numpy() for part in parts)
    return b"".join(xxhash.xxh3_128_digest(each) for each in bits)


def _with_states(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules with a state, and their paths; a module's state includes that of its submodules."""
    if methods(module, METHODS[:1]) is not None:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _with_states(child, f"{path}.{name}" if path else name)


def copied(module: torch.nn.Module, loss: Any = None, frozen: Collection[str] = ()) -> tuple[torch.nn.Module, Any]:
    """Return a copy of a module, with sparse buffers too, which PyTorch can't copy; and of a loss with tensors.

    No group freezes any there: the parameters of the names `frozen` are trained.
    """
    owner = owner_of(loss)
    buffers = [*module.buffers(), *(() if owner is None else owner.buffers())]
    memo = {id(each): each.clone() for each in buffers if each.layout is not torch.strided}
    same, same_loss = copy.deepcopy(module, memo), loss if owner is None else copy.deepcopy(loss, memo)
    for place in parameters_in(parts_of(same, same_loss)[0]):
        if place.name in frozen:
            place.tensor.requires_grad_(True)
    return same, same_loss


def assign(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values, also of another shape, into a tensor; an expanded tensor gets memory of its own."""
    if tensor.layout is not torch.strided:
        values = values.to(tensor.device, tensor.dtype)
        tensor.resize_as_sparse_(values).copy_(values)
    elif tensor.shape == values.shape and 0 not in tensor.stride():
        with torch.no_grad():
            tensor.copy_(values)
    else:
        tensor.data = values.to(tensor.device, tensor.dtype, copy=True)


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


def extra_state_name(module: str, key: str = "") -> str:
    """Return the name of a module's extra state, or of one part of it."""
    return ".".join(part for part in (module, SUFFIX, key) if part)


def is_extra_state(name: str) -> bool:
    """Whether a name is that of an extra state, or of one part of it."""
    return SUFFIX in name.split(".")


def with_extra_states(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return tensors with the parts of each extra state replaced by it; its tensors without axes become numbers."""
    made: dict[str, Any] = {}
    for name, tensor in tensors.items():
        value = tensor.item() if not tensor.ndim else tensor
        module, found, key = f".{name}".partition(f".{SUFFIX}.")
        if found:
            made.setdefault(extra_state_name(module[1:]), {})[key] = value
        else:
            made[name] = value if f".{name}".endswith(f".{SUFFIX}") else tensor
    return made


#: Generators of random numbers, and their methods that return and restore the state.
_GENERATORS: tuple[tuple[Any, str, str], ...] = (
    (torch.Generator, "get_state", "set_state"),
    ((random.Random, np.random.RandomState, np.random.BitGenerator), "__getstate__", "__setstate__"),
)


class ModuleSnapshot:
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
