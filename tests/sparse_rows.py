"""Rows of tables in arrays, and what a model leaves with them."""

import numpy as np

from mpidl.tables.distinct import distinct
from mpidl.tables.lookups import Lookup


class RowsInArrays:
    """A source of rows (`mpidl.tables.lookups.RowSource`) from an array (rows, dimension) for each table.

    Attributes
    ----------
    lookups : list of (int, Lookup)
        All lookups so far: the table, and what was found.
    """

    def __init__(self, *weights):
        self.weights, self.lookups = weights, []

    def look_up(self, table, ids):
        found = distinct(ids, 1)
        self.lookups.append((table, Lookup(self.weights[table][found.ids], found)))
        return self.lookups[-1][1]

    def gradient(self, table):
        """Return the sum of the gradients of all lookups in a table, (rows, dimension)."""
        total = np.zeros_like(self.weights[table])
        for number, found in self.lookups:
            if number == table and found.gradient is not None:
                total[found.ids] += found.gradient
        return total
