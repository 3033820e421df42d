"""The tensors of a module, with the trained ones as views of a flat vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from mpidl.errors import UsageError, kind_of
from mpidl.nn.adaptation import ModelError
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.torch.arrays import as_tensor
from mpidl.torch.table_weight import TableWeight

#: Dtypes of vectors.
DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}

#: Modules whose weights may be tables.
EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)

#: Buffers of normalisations that are means over samples, which all replicas share.
RUNNING = ("running_mean", "running_var", "running_std")

#: Modules by the prefix of their tensors' names.
Parts = Mapping[str, torch.nn.Module]


class Place(NamedTuple):
    """Where `owner` has the tensor of a name: in `tensors`, by its `key`; `saved` if its ``state_dict`` has it."""

    owner: torch.nn.Module
    tensors: dict[str, Any]
    key: str
    name: str
    saved: bool = True

    @property
    def tensor(self) -> Any:
        """The present tensor, which the module may have assigned anew."""
        return self.tensors[self.key] if self.key in self.tensors else None  # noqa: SIM401 (TorchScript)


def parameters_in(parts: Parts) -> Iterator[Place]:
    """Yield the places of all parameters but the weights of tables; tied ones have several."""
    tables = {id(found) for _, found in tables_in(parts)}
    for name, owner in _owners(parts):
        for key, parameter in owner._parameters.items():
            if parameter is not None and id(parameter) not in tables:
                yield Place(owner, owner._parameters, key, name + key)


def tables_in(parts: Parts) -> Iterator[tuple[Place, torch.nn.Parameter | TableWeight]]:
    """Yield the places of the weights of tables, those of embeddings with ``sparse=True``, and what is there.

    A frozen weight with values is no table.
    """
    found = [
        (Place(owner, owner._parameters, key, name + key), vars(owner).get(key) if parameter is None else parameter)
        for name, owner in _owners(parts)
        for key, parameter in owner._parameters.items()
    ]
    tables = {
        id(weight)
        for place, weight in found
        if isinstance(place.owner, EMBEDDINGS) and place.owner.sparse and weight is not None
        if isinstance(weight, TableWeight) or weight.requires_grad or weight.is_meta
    }
    yield from ((place, weight) for place, weight in found if id(weight) in tables)


def buffers_in(parts: Parts) -> Iterator[Place]:
    """Yield the places of all buffers."""
    for name, owner in _owners(parts):
        for key, buffer in owner._buffers.items():
            if buffer is not None:
                yield Place(owner, owner._buffers, key, name + key, key not in owner._non_persistent_buffers_set)


def tensors_in(parts: Parts) -> list[Place]:
    """Return the places of all parameters and buffers."""
    return [*parameters_in(parts), *buffers_in(parts)]


def parts_of(module: torch.nn.Module, loss: Any) -> tuple[dict[str, torch.nn.Module], dict[str, torch.nn.Module]]:
    """Return the parts of a model that are trained, and those that aren't: a loss may be a module, or a method of one.

    The names of its tensors begin with ``loss``.
    """
    owner = owner_of(loss)
    if owner is None or any(owner is each for each in module.modules()):
        return {"": module}, {}
    prefix = "loss"
    while prefix in dict(module.named_children()):
        prefix += "_"
    if any(each.requires_grad for each in owner.parameters()):
        return {"": module, prefix: owner}, {}
    return {"": module}, {prefix: owner}


def owner_of(loss: Any) -> torch.nn.Module | None:
    """Return the module that a loss is, or is a method of, if any."""
    owner = loss if isinstance(loss, torch.nn.Module) else getattr(loss, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _owners(parts: Parts) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield all modules, each with the beginning of its tensors' names."""
    for prefix, part in parts.items():
        for path, owner in part.named_modules(prefix=prefix):
            yield f"{path}." if path else "", owner


class Vector:
    """A module's parameters as views of a flat vector, and the vector's gradient.

    The vector also has the module's statistics, the running means of its normalisations, after the parameters. The
    module changes copies of these, which `load_statistics` and `store_statistics` synchronise, or assigns them anew.

    Parameters
    ----------
    parts : mapping of str to torch.nn.Module
        The module, and what else is trained with it, as `parts_of` returns them.
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
    own_buffers : list of str
        Names of other float buffers; each replica keeps its own.
    aliases : dict of str
        Other names of tensors in the layout, those of tied weights.
    dtype : numpy.dtype
    array : array (layout.size,)
        The vector, after `attach`.
    gradient : array (layout.size,)

    Raises
    ------
    UsageError
        No parameter can be trained, or one has a dtype that vectors can't have.
    """

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts, self._name = parts, name
        places = list(parameters_in(parts))
        named = {place.name: place.tensor for place in _once(places)}
        trained = {key: each for key, each in named.items() if each.requires_grad}
        self.parameters: list[torch.nn.Parameter] = list(trained.values())
        self._dtype = _dtype(name, named, trained, any(tables_in(parts)))
        self.dtype: np.dtype[Any] = DTYPES[self._dtype]
        buffers = list(buffers_in(parts))
        statistics = {place.name: place.tensor for place in _once(buffers) if self._is_statistic(place)}
        self._statistics = list(statistics)
        floats = (place.name for place in _once(buffers) if place.saved and place.tensor.is_floating_point())
        self.own_buffers = [name for name in floats if name not in statistics]
        self.layout = Layout([(key, tuple(each.shape)) for key, each in (trained | statistics).items()])
        names = {id(each): key for key, each in (trained | statistics).items()}
        others = ((place.name, names.get(id(place.tensor))) for place in (*places, *buffers))
        self.aliases = {other: key for other, key in others if key not in (None, other)}
        start = sum(each.numel() for each in self.parameters)
        self._averaged = slice(start, self.layout.size)
        self.statistics = [Range(start, self.layout.size)] if statistics else []
        ordinals = {id(each): number for number, each in enumerate(self.parameters)}
        self._trained: list[tuple[dict[str, Any], str, str, torch.Tensor, int]] = [
            (place.tensors, place.key, place.name, place.tensor, ordinals[id(place.tensor)])
            for place in places
            if id(place.tensor) in ordinals
        ]

    def _is_statistic(self, place: Place) -> bool:
        mean = place.key in RUNNING and RUNNING[0] in place.owner._buffers
        return mean and place.saved and place.tensor.dtype is self._dtype

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The module's tensors in the order of the layout."""
        present = {place.name: place for place in buffers_in(self._parts)}
        self._averages = [present[name] for name in self._statistics]
        return [*self.parameters, *(place.tensor for place in self._averages)]

    def attach(self) -> None:
        """Create the vector and the gradient with the module's values, and make its tensors views of memory here."""
        values, tensors = np.empty(self.layout.size, self.dtype), self.tensors
        for view, each in zip(_views(values, tensors), tensors, strict=True):
            view.copy_(each.detach())
        self._use(values, np.zeros_like(values), torch.from_numpy(values[self._averaged].copy()))

    def move(self, xp: Any) -> None:
        """Move the module to the device of CuPy's arrays."""
        values = xp.asarray(self.array)
        device = as_tensor(values).device
        for part in self._parts.values():
            part.to(device)
        self._use(values, xp.zeros_like(values), self._own.to(device))

    def _use(self, values: Any, gradient: Any, own: torch.Tensor) -> None:
        """Use this vector, this gradient, and `own` for the module's own statistics."""
        self.gradient, self._own, self._loaded = gradient, own, own.clone()
        self.gradients = list(_views(gradient, self.parameters))
        self._changes = as_tensor(gradient)[self._averaged]
        kept = self.tensors[len(self.parameters) :]
        self._kept = [(place.tensors, place.key, each) for place, each in zip(self._averages, kept, strict=True)]
        views, *others = (list(_views(each, kept)) for each in (own, self._loaded, self._changes))
        self._loaded_views, self._change_views = others
        for view, each in zip(views, kept, strict=True):
            each.data = view
        self.replace(values)

    def replace(self, array: Any) -> None:
        """Make the parameters views of another vector, with its values."""
        self.array, self._fetched = array, as_tensor(array)[self._averaged]
        for view, each in zip(_views(array, self.parameters), self.parameters, strict=True):
            each.data = view
        self._addresses = [each.data_ptr() for each in self.parameters]

    def stray(self) -> str | None:
        """Return the name of a parameter that the module has replaced, or moved out of the vector, if any."""
        addresses = self._addresses
        for tensors, key, name, parameter, ordinal in self._trained:
            if parameter.data_ptr() != addresses[ordinal] or tensors.get(key) is not parameter:
                return name
        return None

    def load_statistics(self) -> None:
        """Copy the statistics of the vector, which others may change at any time, into the module."""
        if self.statistics:
            for number in self._assigned_anew():
                tensors, key, kept = self._kept[number]
                tensors[key] = kept
            self._loaded.copy_(self._fetched)
            self._own.copy_(self._loaded)

    def store_statistics(self) -> None:
        """Set the gradient of the statistics to the module's changes, with the opposite sign.

        Raise ModelError if a statistic has another shape now.
        """
        if self.statistics:
            torch.sub(self._loaded, self._own, out=self._changes)
            for number in self._assigned_anew():
                self._store_anew(number)

    def _assigned_anew(self) -> list[int]:
        """Return the numbers of the statistics that the module has assigned anew."""
        return [number for number, (tensors, key, kept) in enumerate(self._kept) if tensors[key] is not kept]

    def _store_anew(self, number: int) -> None:
        """Store the change of a statistic that the module has assigned anew; the pass may still need the old tensor."""
        place, loaded = self._averages[number], self._loaded_views[number]
        tensor = place.tensor
        if not isinstance(tensor, torch.Tensor) or tensor.shape != loaded.shape:
            found = f"of shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else kind_of(tensor)
            raise ModelError(
                f"{self._name}: buffer {place.name} is {found} now, expected {tuple(loaded.shape)} as before "
                "(persistent=False exempts it)"
            )
        torch.sub(loaded, tensor.detach(), out=self._change_views[number])

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


def _once(places: list[Place]) -> Iterator[Place]:
    """Yield the first place of each tensor."""
    seen = set[int]()
    for place in places:
        if id(place.tensor) not in seen:
            seen.add(id(place.tensor))
            yield place


def _views(vector: Any, tensors: list[Any]) -> Iterator[torch.Tensor]:
    """Yield a view of a flat vector for each tensor, one after another."""
    flat = vector if isinstance(vector, torch.Tensor) else as_tensor(vector)
    start = 0
    for each in tensors:
        yield flat[start : start + each.numel()].view(each.shape)
        start += each.numel()


def _dtype(
    name: str, named: Mapping[str, torch.nn.Parameter], trained: Mapping[str, torch.nn.Parameter], tables: bool
) -> torch.dtype:
    """Return the dtype of the trained parameters."""
    if not trained:
        found = "frozen parameters only" if named else f"no parameters{' beside its tables' * tables}"
        raise UsageError(f"{name} has {found}, expected at least one to train")
    for key, each in named.items():
        if torch.nn.parameter.is_lazy(each) or each.is_meta:
            raise UsageError(f"{name}: parameter {key} has no values yet: pass a batch through the module first")
    first, held = next(iter(trained)), dict[int, str]()
    for key, each in trained.items():
        found = str(each.dtype).removeprefix("torch.")
        if each.dtype not in DTYPES:
            remedy = " (model.autocast computes in bfloat16)" if each.is_floating_point() else ""
            raise UsageError(f"{name}: parameter {key} is {found}, expected float32 or float64{remedy}")
        if each.dtype is not trained[first].dtype:
            raise UsageError(f"{name}: parameter {key} is {found}, expected {DTYPES[trained[first].dtype]} as {first}")
        if each.numel() and (other := held.setdefault(each.data_ptr(), key)) != key:
            raise UsageError(
                f"{name}: parameter {key} has the memory of {other}, expected one parameter for both names"
            )
    return trained[first].dtype
