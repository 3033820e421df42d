"""Tables of a module: the weights of its embeddings with ``sparse=True``, whose rows a model looks up by id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite, log, sqrt
from typing import Any

import numpy as np
import torch

from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError, nearest, quoted
from mpidl.nn.adaptation import ModelError, model_errors
from mpidl.nn.model import CompleteModel
from mpidl.tables.lookups import Lookup, NoRows, TableSpec, Wanted, Weights
from mpidl.tables.sources import FirstRows
from mpidl.torch.module_state import assign
from mpidl.torch.table_weight import TableWeight
from mpidl.torch.vector import EMBEDDINGS, Parts, Place, tables_in

#: Rows that are read at a time.
BLOCK = 1 << 16


class Tables(Weights):
    """The tables of a module, and the lookups of a batch.

    Parameters
    ----------
    model : CompleteModel
        Its attribute `rows` is where rows are looked up.
    parts : mapping of str to torch.nn.Module
        The module, and what else is trained with it.
    name : str
        Its name in messages.
    dtype : torch.dtype
        That of the parameters in the vector.
    compile : bool
        Whether the module is compiled; lookups aren't.

    Attributes
    ----------
    specs : list of TableSpec
        Each has the name of a parameter.

    Raises
    ------
    UsageError
        A weight has another dtype, or contains NaN or infinity.
    """

    def __init__(self, model: CompleteModel, parts: Parts, name: str, dtype: torch.dtype, compile: bool) -> None:
        self.model, self._name, self._dtype = model, name, dtype
        self._places: list[tuple[Place, TableWeight]] = []
        self._before: list[tuple[Place, TableWeight, Any]] = []
        self._looked_up: list[tuple[Lookup, torch.Tensor]] = []
        self._called = torch.compiler.disable(self.look_up) if compile else self.look_up
        made = dict[int, TableWeight]()
        paddings = defaultdict[int, set[int | None]](set)
        names = defaultdict[int, list[str]](list)
        for place, found in tables_in(parts):
            paddings[id(found)].add(getattr(place.owner, "padding_idx", None))
            names[id(found)].append(place.name)
        for place, found in tables_in(parts):
            if id(found) not in made:
                (padding, *others) = paddings[id(found)]
                made[id(found)] = self._stand_in(len(made), place, found, None if others else padding)
                made[id(found)].spec = replace(made[id(found)].spec, aliases=tuple(names[id(found)][1:]))
            self._places.append((place, made[id(found)]))
        self._tables = list(made.values())
        self.specs = [each.spec for each in self._tables]

    def _stand_in(self, number: int, place: Place, found: Any, padding: int | None) -> TableWeight:
        what = f"{self._name}: table {place.name}"
        if found.dtype is not self._dtype:
            own, expected = (str(each).removeprefix("torch.") for each in (found.dtype, self._dtype))
            raise UsageError(f"{what} is {own}, expected {expected} as the parameters")
        if isinstance(found, TableWeight):  # another model has the module
            same = TableWeight(found.spec, number, found.weight, self._called)
            same.allocated = found.allocated
            return same
        scale = _scale(found, getattr(place.owner, "padding_idx", None) is not None)
        if not isfinite(scale):
            raise UsageError(f"{what} contains NaN or infinity, expected finite values")
        rows, dimension = found.shape
        spec = TableSpec(place.name, dimension, rows, scale=scale, padding=padding)
        return TableWeight(spec, number, found, self._called)

    # The module.

    @property
    def weights(self) -> dict[int, torch.Tensor]:
        """The weights of the module's owner, by their identity."""
        return {id(each.weight): each.weight for each in self._tables}

    def first_rows(self) -> dict[str, np.ndarray | None]:
        _ = self.model.parameters  # takes over the module, whose weights another model may have freed
        weights = {each.spec.name: each.weight.detach() if each.allocated else None for each in self._tables}
        return {name: None if weight is None else weight.cpu().numpy() for name, weight in weights.items()}

    def load(self, rows: Mapping[str, np.ndarray]) -> None:
        for each in self._tables:
            if each.spec.name in rows:
                assign(each.weight, torch.from_numpy(rows[each.spec.name]))

    def take(self) -> None:
        """Let the module have a stand-in for each weight."""
        for place, stand_in in self._places:
            attributes = vars(place.owner)
            self._before.append((place, stand_in, attributes.get(place.key)))
            place.tensors[place.key], attributes[place.key] = None, stand_in

    def give_back(self) -> None:
        """Give the module its weights back, with the trained rows if these can be read.

        If they can't, a weight whose memory has been freed is on the device "meta".
        """
        complete = getattr(self.model.rows, "complete", False)
        for each in self._tables:
            if complete and each.allocated:
                each.weight.data = self._present(each)
            elif each.weight.shape != each.shape:
                empty = torch.empty(each.shape, dtype=each.dtype, device="meta")
                each.weight = torch.nn.Parameter(empty, each.requires_grad)
        for place, stand_in, other in self._before:
            attributes = vars(place.owner)
            if other is None:
                place.tensors[place.key] = stand_in.weight
                del attributes[place.key]
            else:
                attributes[place.key] = other
        self._before.clear()

    # Batches.

    def begin(self, device: torch.device) -> None:
        """Begin to compute a gradient on a device; forget what others have looked up.

        The memory of the weights is freed when training begins: until then, only first rows are looked up.
        """
        self._looked_up.clear()
        for each in self._tables:
            each.device = device
            if each.weight.numel() and not each.weight.is_meta and not isinstance(self.model.rows, FirstRows | NoRows):
                each.weight.data = each.weight.data.new_empty(0)

    def look_up(
        self, weight: TableWeight, ids: torch.Tensor, padding: int | None
    ) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """Return the places of ids in some rows, these, and the place of the padding, which is a row of zeros."""
        flat, kept = _checked(weight, ids, padding)
        found = self.model.rows.look_up(weight.number, flat)
        rows, places = torch.from_numpy(found.rows).to(weight.device, self._dtype), found.places
        if weight.requires_grad and torch.is_grad_enabled():
            self._looked_up.append((found, rows.requires_grad_()))
        last = None
        if kept is not None:
            last = len(rows)
            rows, places = (
                torch.cat([rows, rows.new_zeros(1, weight.spec.dimension)]),
                np.full(kept.size, last, np.int32),
            )
            places[kept] = found.places
        return torch.from_numpy(places).view(ids.shape).to(weight.device), rows, last

    def settle(self) -> None:
        """Leave the gradients of what has been looked up where they belong, at the end of the backward pass."""
        for lookup, rows in self._looked_up:
            if rows.grad is not None:
                lookup.gradient = rows.grad.cpu().numpy()
        self._looked_up.clear()

    def wanted(self, module: torch.nn.Module, inputs: Any) -> list[Wanted] | None:
        """Return the lookups that a module announces for a batch's inputs, if it does."""
        announce = getattr(module, "lookups", None)
        if announce is None or not self.specs:
            return None
        with model_errors(f"{self._name}.lookups"):
            found = announce(inputs)
            return [self._wanted(*pair) for pair in (found.items() if isinstance(found, Mapping) else found)]

    def _wanted(self, path: str, ids: Any) -> Wanted:
        """Return the lookup of ids by the embedding of this path."""
        embeddings = {
            place.name.rpartition(".")[0]: (weight, place.owner)
            for place, weight in self._places
            if isinstance(place.owner, EMBEDDINGS)
        }
        if path not in embeddings:
            expected = f"expected an embedding with sparse=True{nearest(path, list(embeddings))}"
            raise ModelError(f"{self._name}.lookups: {quoted(path)}, {expected}")
        weight, owner = embeddings[path]
        return Wanted(weight.number, _checked(weight, ids, owner.padding_idx)[0])

    def _present(self, weight: TableWeight) -> torch.Tensor:
        """Return all rows of a table."""
        values = torch.empty(weight.shape, dtype=weight.dtype)
        for start in range(0, len(values), BLOCK):
            ids = np.arange(start, min(start + BLOCK, len(values)))
            found = self.model.rows.look_up(weight.number, ids)
            values[start : start + BLOCK] = torch.from_numpy(found.rows[found.places])
        if weight.spec.padding is not None:
            values[weight.spec.padding] = 0
        return values.to(weight.weight.device)


def _checked(weight: TableWeight, ids: Any, padding: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return ids without the padding as int64 (n,); and where others are among them, None if there is no padding."""
    values = ids.values if isinstance(ids, Ragged) else ids
    flat = weight.spec.checked(values.cpu().numpy() if isinstance(values, torch.Tensor) else values)
    if padding is None:
        return flat, None
    kept = flat != padding % weight.shape[0]
    return (flat, None) if kept.all() else (flat[kept], kept)


def _scale(weight: torch.Tensor, padded: bool) -> float:
    """Return the standard deviation around 0 of a weight's values, without a row of padding if `padded`.

    It is 1 on the device "meta", and where its difference from 1 may be due to chance.
    """
    # A sample of many rows suffices: the norm of all would be inexact in float32.
    rows = weight.detach()[:: max(1, -(-len(weight) // BLOCK))]
    count = rows.numel() - padded * rows.shape[1]
    if weight.is_meta or count <= 0:
        return 1.0
    found = float(torch.linalg.vector_norm(rows)) / sqrt(count)
    return 1.0 if found and abs(log(found)) < 5 / sqrt(2 * count) else float(f"{found:.2g}")
