"""What a model says of its tables, and how it gets the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpidl.errors import UsageError
from mpidl.tables.distinct import Distinct, add_to, distinct

#: Ids of a table without a number of rows are any of these.
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class TableSpec:
    """A table of a model: rows that are looked up by ids.

    Attributes
    ----------
    name : str
        In checkpoints and messages.
    dimension : int
        Length of a row.
    rows : int or None
        Ids are in [0, rows); None: any int64.
    normal : bool
        Whether first values are drawn from a normal distribution of mean 0; else from a uniform one around 0.
    scale : float
        Its standard deviation, or the bound of the absolute values.
    padding : int or None
        An id that the model never looks up: its row is zeros in exported weights.
    aliases : tuple of str
        Its other names in a module, which exported weights have, too.
    """

    name: str
    dimension: int
    rows: int | None = None
    normal: bool = True
    scale: float = 1.0
    padding: int | None = None
    aliases: tuple[str, ...] = ()

    def checked(self, ids: Any) -> np.ndarray:
        """Return ids as a flat array of int64; raise UsageError for those that aren't whole numbers of the table."""
        found = np.asarray(ids).reshape(-1)
        if found.dtype.kind not in "iu":
            raise UsageError(f"table {self.name}: ids of type {found.dtype}, expected integers")
        if found.dtype == np.uint64 and found.size and found.max() > INT64.max:
            raise UsageError(f"table {self.name}: an id of {found.max()}, expected at most {INT64.max} (int64)")
        if self.rows is not None and found.size:
            for extreme in (int(found.min()), int(found.max())):
                if not 0 <= extreme < self.rows:
                    raise UsageError(f"table {self.name}: an id of {extreme}, expected 0 to {self.rows - 1}")
        return np.ascontiguousarray(found, np.int64)


class Lookup:
    """The rows of some ids.

    Parameters
    ----------
    rows : array (distinct ids, dimension)
        The values of each distinct id.
    found : Distinct
        These ids, and where each of those that were asked for is among them.
    noted : list of Lookup, optional
        Gets the lookup as soon as it has a gradient.

    Attributes
    ----------
    ids : array (distinct ids,) of int64
        Grouped by the server that has their rows.
    parts : sequence of slice
        The place of each server's ids.
    places : array (ids,) of int32
        The index of each id's row among the distinct ones.
    """

    def __init__(self, rows: np.ndarray, found: Distinct, noted: list[Lookup] | None = None) -> None:
        self.rows = rows
        self.ids, self.parts, self.places = found
        self._gradient: np.ndarray | None = None
        self._noted = noted

    @property
    def gradient(self) -> np.ndarray | None:
        """The gradient with respect to `rows`, (distinct ids, dimension), once there is one: set it, or `add` to it."""
        return self._gradient

    @gradient.setter
    def gradient(self, values: np.ndarray) -> None:
        if self._gradient is None and self._noted is not None:
            self._noted.append(self)
        self._gradient = values

    def answers(self, ids: np.ndarray) -> bool:
        """Return whether it is that of these ids, int64 (n,), in this order."""
        return np.array_equal(self.ids[self.places], ids)

    def add(self, gradients: np.ndarray) -> None:
        """Add the gradients with respect to the values of each id, (ids, dimension): those of equal ids in order."""
        if self._gradient is None:
            self.gradient = np.zeros_like(self.rows)
        add_to(self.gradient, self.places, gradients)  # type: ignore[arg-type]


def gathered(lookups: Sequence[Lookup]) -> tuple[Distinct, np.ndarray]:
    """Return the distinct ids of lookups in one table, which have gradients, and their sums, (distinct ids, dimension).

    The gradients are added in the order of the lookups; those of a single one aren't copied.
    """
    if len(lookups) == 1:
        (only,) = lookups
        assert only.gradient is not None
        return Distinct(only.ids, only.parts, only.places), only.gradient
    found = distinct(np.concatenate([each.ids for each in lookups]), len(lookups[0].parts))
    summed = np.zeros((found.ids.size, lookups[0].rows.shape[1]), lookups[0].rows.dtype)
    start = 0
    for each in lookups:
        assert each.gradient is not None
        stop = start + each.ids.size
        add_to(summed, found.places[start:stop], each.gradient)
        start = stop
    return found, summed


class Wanted(NamedTuple):
    """Ids of a batch that will be looked up in a table, given by its number among the model's."""

    table: int
    ids: np.ndarray


class RowSource(Protocol):
    """Where a model gets rows from, and leaves their gradients.

    A source with an attribute ``complete = True`` returns any trained rows at any time, also after training. It has a
    method ``stored(table, server, servers)``, which yields blocks of the ids of a server and their rows.
    """

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        """Return the rows of ids, int64 (n,), in a table, given by its number among the model's.

        A gradient that the lookup has when the batch's gradient is complete is pushed with that.
        """
        ...


class NoRows:
    """What a model has as `rows` before these are set."""

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        """Raise UsageError."""
        raise UsageError("model.rows: not set; a model with tables takes their rows from it, from its first batch on")


class Weights:
    """The weights of a model's own for which its tables stand; by default, none."""

    def first_rows(self) -> Mapping[str, np.ndarray | None]:
        """Return their values (rows, dimension) by table, with which its rows begin; None if they take no memory."""
        return {}

    def load(self, rows: Mapping[str, np.ndarray]) -> None:
        """Take over what `first_rows` has returned on another rank."""


class WithTables:
    """A model that may have tables.

    Attributes
    ----------
    tables : sequence of TableSpec
        Its tables, whose rows are not among its parameters; none by default.
    rows : RowSource
        Where it looks them up; set before its first batch.
    weights : Weights
    """

    tables: Sequence[TableSpec] = ()
    rows: RowSource = NoRows()
    weights: Weights = Weights()

    def wanted(self, batch: Any) -> Sequence[Wanted] | None:
        """Return the lookups that a batch will make, in their order; None if only the computation shows them."""
        return None
