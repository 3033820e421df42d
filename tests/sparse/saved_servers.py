"""Servers' parts of two tables, which are updated, saved and restored without a job."""

import numpy as np

from mpidl.parameters import Layout, shards
from mpidl.rules import Adam
from mpidl.sparse.saved import restore
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.deltas import ShardFiles
from mpidl.storage.files import scratch
from mpidl.storage.position import Position
from mpidl.storage.table_files import saved_tables
from mpidl.storage.writer import CheckpointIndex, save_index
from mpidl.tables.distinct import distinct, owner
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table

SPECS = [TableSpec("users", 3, 50), TableSpec("0-embedding/words", 2, scale=0.1, normal=False)]
RULE, SEED = Adam(0.1), 3
LAYOUT = Layout([("0-dense/weight", (6, 2))])


class Servers:
    """The parts of both tables on some servers."""

    def __init__(self, number, rule=RULE, **settings):
        self.tables = [
            [Table(spec, rule, capacity=60, seed=SEED, dtype=np.float64, **settings) for _ in range(number)]
            for spec in SPECS
        ]
        self.step = 0

    def update(self, updates):
        """Apply pushes of random ids, the same for any number of servers."""
        for _ in range(updates):
            self.step += 1
            random = np.random.default_rng(self.step)
            for table in self.tables:
                ids = np.unique(random.integers(0, 50, 9))
                gradients = random.normal(size=(ids.size, table[0].spec.dimension))
                own = owner(ids, len(table))
                for server, part in enumerate(table):
                    part.update(ids[own == server], gradients[own == server], self.step)

    def read(self, table, ids):
        found = distinct(ids, len(self.tables[table]))
        rows = np.empty((found.ids.size, SPECS[table].dimension))
        for own, part in zip(found.parts, self.tables[table], strict=True):
            part.read(found.ids[own], rows[own])
        return rows[found.places]

    def save(self, directory, files=None):
        """Save a checkpoint, and return it."""
        unfinished, servers = scratch(directory, 1), len(self.tables[0])
        directory.mkdir(exist_ok=True)
        for number, own in enumerate(shards(LAYOUT.size, servers)):
            counts = dict.fromkeys(("clock", "pushes"), np.array(self.step))
            state = {"parameters": np.zeros(own.size), **counts}
            for table in self.tables:
                arrays = table[number].arrays()
                state |= {f"tables/{table[0].spec.name}/{name}": values for name, values in arrays.items()}
            (files or ShardFiles()).save(unfinished, number, own, state, self.step)
        position = Position(self.step, 0, 0.0, 0, [])
        save_index(
            unfinished, CheckpointIndex(LAYOUT, servers, position, f"[run]\nseed = {SEED}\n", "0.0.1", {}, tables=SPECS)
        )
        return Checkpoint(directory / str(self.step))

    def load(self, checkpoint):
        self.step = checkpoint.position.step
        for table, saved in zip(self.tables, saved_tables(checkpoint).values(), strict=True):
            for server, part in enumerate(table):
                restore(part, saved, server, len(table))
        return self


def comparable(table, settings):
    """Return the arrays of a table: without eviction, rows are in no order that matters."""
    arrays = table.arrays()
    order = slice(None) if settings else np.argsort(arrays["ids"])
    beside = [arrays.pop(name) for name in ("counts", "touches") if name in arrays]
    return [*beside, *(values[order] for values in arrays.values())]
