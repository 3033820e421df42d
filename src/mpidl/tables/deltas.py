"""A table's arrays, of a full copy and of what has been used since."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpidl.tables.index import Index

#: Place in "counts" of the number of rows.
ROWS = 4


def left(ids: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
    """Return the places of the rows that a table still has, of a full copy and of what was used later, in order.

    Rows are evicted in the order of their last use. So of all rows in that order, each with its last use alone, the
    last ones are left.

    Parameters
    ----------
    ids : sequence of array
        The ids of `Table.arrays()`, and then those of `Table.arrays(since)` with the update of the copy before.
    rows : int
        Number of rows of the table, from the last "counts".
    """
    known, kept = Index(), []
    for each in reversed(ids):
        found = np.empty(each.size, np.int64)
        known.find(each, found)
        places = np.flatnonzero(found == 0)[-rows:] if rows else np.empty(0, np.int64)
        known.add(each[places], np.ones(places.size, np.int64))
        kept.append(places)
        rows -= places.size
    return kept[::-1]
