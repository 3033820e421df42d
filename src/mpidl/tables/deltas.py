"""A table's arrays, of a full copy and of what has been used since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpidl.tables.index import Index

#: The arrays that have a line for each row.
BY_ROW = ("ids", "rows", "state", "uses")
#: Places in "counts".
STEP, NEW, ADMITTED, EVICTED, ROWS = range(5)


def merged(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of a table from those of a full copy and of later updates, in order.

    Rows are evicted in the order of their last use. So of the rows in that order, each with its last use alone, the
    last ones are those that are left, as many as the table had.

    Parameters
    ----------
    parts : sequence of dict
        What `Table.arrays()` has returned, and then `Table.arrays(since)` with the update of the one before.
    """
    known, kept = Index(), []
    for part in reversed(parts):
        rows = np.empty(part["ids"].size, np.int64)
        known.find(part["ids"], rows)
        kept.append(np.flatnonzero(rows == 0))
        known.add(part["ids"][kept[-1]], np.ones(kept[-1].size, np.int64))
    kept.reverse()
    last = dict(parts[-1])
    for name in BY_ROW:
        values = np.concatenate([part[name][rows] for part, rows in zip(parts, kept, strict=True)])
        last[name] = values[len(values) - int(last["counts"][ROWS]) :]
    return last
