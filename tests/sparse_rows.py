"""Rows of tables in arrays, and what a model leaves with them."""

import numpy as np

from mpidl.tables.lookups import Lookup


class RowsInArrays:
    """A source of rows (`mpidl.tables.lookups.RowSource`) from an array (rows, dimension) for each table.

    Attributes
    ----------
    lookups : list of (int, array, Lookup)
        All lookups so far: the table, its distinct ids, and what was found.
    """

    def __init__(self, *weights):
        self.weights, self.lookups = weights, []

    def look_up(self, table, ids):
        distinct, places = np.unique(ids, return_inverse=True)
        found = Lookup(self.weights[table][distinct], places.astype(np.int32))
        self.lookups.append((table, distinct, found))
        return found

    def gradient(self, table):
        """Return the sum of the gradients of all lookups in a table, (rows, dimension)."""
        total = np.zeros_like(self.weights[table])
        for number, distinct, found in self.lookups:
            if number == table and found.gradient is not None:
                total[distinct] += found.gradient
        return total
