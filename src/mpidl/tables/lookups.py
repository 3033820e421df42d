"""What a model says of its tables, and how it gets the rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpidl.errors import UsageError
from mpidl.tables.distinct import add_to

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
    """

    name: str
    dimension: int
    rows: int | None = None
    normal: bool = True
    scale: float = 1.0

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

    Attributes
    ----------
    rows : array (distinct ids, dimension)
        The values of each distinct id.
    places : array (ids,) of int32
        The index of each id's row among these.
    gradient : array (distinct ids, dimension) or None
        The gradient with respect to `rows`, once there is one: set it, or `add` to it.
    """

    def __init__(self, rows: np.ndarray, places: np.ndarray) -> None:
        self.rows, self.places = rows, places
        self.gradient: np.ndarray | None = None

    def add(self, gradients: np.ndarray) -> None:
        """Add the gradients with respect to the values of each id, (ids, dimension): those of equal ids in order."""
        if self.gradient is None:
            self.gradient = np.zeros_like(self.rows)
        add_to(self.gradient, self.places, gradients)


class Wanted(NamedTuple):
    """Ids of a batch that will be looked up in a table, given by its number among the model's."""

    table: int
    ids: np.ndarray


class RowSource(Protocol):
    """Where a model gets rows from, and leaves their gradients."""

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        """Return the rows of ids, int64 (n,), in a table, given by its number among the model's.

        A gradient that the lookup has when the batch's gradient is complete is pushed with that.
        """
        ...


class WithTables(Protocol):
    """A model with tables: it looks its rows up in `rows`, which is set before the first batch."""

    tables: Sequence[TableSpec]
    rows: RowSource

    def wanted(self, batch: Any) -> Sequence[Wanted] | None:
        """Return the lookups that a batch will make, in their order; None if only the computation shows them."""
        ...
