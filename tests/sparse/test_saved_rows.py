"""Tables of a checkpoint in use: rows by id, first values of others, and servers that go on, be they as many or not."""

from itertools import chain

import numpy as np
import pytest

from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Layout, shards
from mpidl.rules import Adam, Momentum, Sgd
from mpidl.sparse.messages import plain
from mpidl.sparse.saved import SavedRows, restore, resume
from mpidl.sparse.server_tables import ServerTables
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import scratch
from mpidl.storage.position import Position
from mpidl.storage.table_files import saved_tables
from mpidl.storage.writer import Index, save_index, save_shard
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

    def save(self, directory):
        """Save a checkpoint, and return it."""
        unfinished, servers = scratch(directory, 1), len(self.tables[0])
        directory.mkdir()
        for number, own in enumerate(shards(LAYOUT.size, servers)):
            state = {"parameters": np.zeros(own.size), "clock": np.array(self.step)}
            for table in self.tables:
                arrays = table[number].arrays()
                state |= {f"tables/{table[0].spec.name}/{name}": values for name, values in arrays.items()}
            save_shard(unfinished, number, own, state)
        position = Position(self.step, 0, 0.0, 0, [])
        save_index(unfinished, Index(LAYOUT, servers, position, f"[run]\nseed = {SEED}\n", "0.0.1", {}, tables=SPECS))
        return Checkpoint(directory / str(self.step))

    def load(self, checkpoint):
        self.step = checkpoint.position.step
        for table, saved in zip(self.tables, saved_tables(checkpoint).values(), strict=True):
            for server, part in enumerate(table):
                restore(part, saved, server, len(table))
        return self


@pytest.fixture(scope="module", params=[{}, {"max_rows": 6}, {"max_age": 3}], ids=str)
def saved(request, tmp_path_factory):
    """Settings, three servers after some updates, and their checkpoint."""
    servers = Servers(3, **request.param)
    servers.update(12)
    return request.param, servers, servers.save(tmp_path_factory.mktemp("rows") / "checkpoints")


def test_rows_by_id(saved):
    _, servers, checkpoint = saved
    rows = SavedRows(checkpoint, SPECS[::-1])  # the model may have them in another order
    for table, ids in ((0, [7, 49, 7, 0, 3, 12, 49, 21]), (1, [2**63 - 1, -5, 4, *range(50), 4]), (1, [])):
        ids = np.array(ids, np.int64)
        found = rows.look_up(1 - table, ids)
        np.testing.assert_array_equal(found.rows[found.places], servers.read(table, ids))


def comparable(table, settings):
    """Return the arrays of a table: without eviction, rows are in no order that matters."""
    arrays = table.arrays()
    order = slice(None) if settings else np.argsort(arrays["ids"])
    return [arrays.pop("counts"), *(values[order] for values in arrays.values())]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_servers_go_on(saved, number):
    settings, before, checkpoint = saved
    whole = {"max_rows": 18 // number} if "max_rows" in settings and number != 3 else settings
    resumed = Servers(number, **whole).load(checkpoint)
    straight = Servers(3, **settings)
    straight.update(12)
    if number != 3 and "max_rows" in settings:  # each server evicts for itself
        np.testing.assert_array_equal(resumed.read(0, np.arange(50)), before.read(0, np.arange(50)))
        return
    for each in (straight, resumed):
        each.update(9)
    for table, spec in enumerate(SPECS):
        ids = np.arange(50)
        np.testing.assert_array_equal(resumed.read(table, ids), straight.read(table, ids), spec.name)
    if number == 3:
        for own, other in zip(chain(*resumed.tables), chain(*straight.tables), strict=True):
            for found, expected in zip(*(comparable(each, settings) for each in (own, other)), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_figures_count_all_rows_once(saved):
    _, before, checkpoint = saved
    resumed = Servers(2).load(checkpoint)
    for own, others in zip(resumed.tables, before.tables, strict=True):
        for name in ("new", "admitted", "evicted"):
            assert sum(getattr(each, name) for each in own) == sum(getattr(each, name) for each in others)
        assert {each.step for each in own} == {12}


@pytest.mark.parametrize(
    ("rule", "line"), [(Sgd(0.1), "sgd keeps nothing"), (Momentum(0.1), "momentum keeps velocity")]
)
def test_another_rule_is_one_line(saved, rule, line):
    tables = ServerTables([table[0] for table in Servers(1, rule).tables], rule, plain(np.dtype(np.float64)))
    with pytest.raises(UsageError, match=rf"^tables.rule: {line} for each row, .*12 was saved with .*$"):
        resume(tables, saved[2], 0, 1, same_algorithm=True)


def test_too_little_room_is_one_line(saved):
    _, _, checkpoint = saved
    table = Table(SPECS[0], RULE, capacity=2, seed=SEED, dtype=np.float64)
    with pytest.raises(MpidlError, match="table users: full with"):
        restore(table, saved_tables(checkpoint)["users"], 0, 1)


def test_other_tables_are_one_line(saved):
    with pytest.raises(UsageError, match=r"table 'users': found 50 rows of dimension 3, the model has none$"):
        SavedRows(saved[2], SPECS[1:])
