"""A model whose table counts ids."""

from pathlib import Path

import numpy as np

from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters import Layout
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good
from mpidl.storage.table_files import saved_tables
from mpidl.tables.lookups import TableSpec, Wanted


class Counting(CompleteModel):
    """A model whose table has a gradient of 1 for each id, so that SGD at rate 1 counts them; its dense part alike."""

    def __init__(self):
        self.parameters, self.dtype = np.zeros(1), np.dtype(np.float64)
        self.layout = Layout([("count", (1,))])
        self.tables = [TableSpec("ids", 2, None, scale=0.0)]
        self.takes_integers = True

    def made(self, batch):
        """Return the lookup that a batch makes."""
        return Wanted(0, self.tables[0].checked(batch.inputs))

    def wanted(self, batch):
        return [self.made(batch)]

    def loss_and_gradient(self, batch):
        table, ids = self.made(batch)
        self.rows.look_up(table, ids).add(np.ones((ids.size, 2)))
        return 0.0, np.full(1, float(len(batch.inputs)))

    def evaluate(self, batch):
        table, ids = self.made(batch)
        return Evaluation(float(self.rows.look_up(table, ids).rows.sum()), 0, None)


def counts_of(summary):
    """Return how often a run's table has each id in its last checkpoint."""
    path, _ = newest_good(Path(summary["run_dir"]))
    saved = saved_tables(Checkpoint(path))["ids"]
    return {id: -int(row[0]) for id, row in zip(saved.read("ids").tolist(), saved.read("rows"), strict=True)}
