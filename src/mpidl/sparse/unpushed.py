"""The gradients of rows that a replica has not pushed yet, in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpidl.tables.distinct import distinct
from mpidl.tables.lookups import Lookup, TableSpec, gathered


def saved(tables: Sequence[TableSpec], lookups: Sequence[Sequence[Lookup]]) -> dict[str, np.ndarray]:
    """Return the gradients of lookups in each table as the arrays "unpushed/NAME/ids" and "unpushed/NAME/gradients"."""
    found: dict[str, np.ndarray] = {}
    for table, own in zip(tables, lookups, strict=True):
        if own:
            (ids, _, _), gradients = gathered(own)
            found |= {f"unpushed/{table.name}/ids": ids, f"unpushed/{table.name}/gradients": gradients.copy()}
    return found


def restored(
    tables: Sequence[TableSpec], vectors: Mapping[str, np.ndarray], servers: int, lookups: Sequence[list[Lookup]]
) -> None:
    """Add those that `saved` has returned, if there are any, to the lookups in each table."""
    for table, own in zip(tables, lookups, strict=True):
        if (ids := vectors.get(f"unpushed/{table.name}/ids")) is not None:
            given, found = vectors[f"unpushed/{table.name}/gradients"], distinct(ids, servers)
            gradients = np.empty_like(given)
            gradients[found.places] = given
            Lookup(np.empty_like(given), found, own).gradient = gradients
