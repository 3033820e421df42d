"""A table against a dict of rows: any ids in any order, growth, eviction, and what is left of evicted rows."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import MpidlError
from mpidl.rules import Adagrad, Adam, Sgd
from mpidl.tables.distinct import owner
from mpidl.tables.entries import Entries
from mpidl.tables.index import RowIndex
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63)]
IDS = st.one_of(st.sampled_from(EXTREMES), st.integers(0, 40), st.integers(-(2**63), 2**63 - 1))


class Oracle:
    """The same by a dict of rows, which are looked at one by one."""

    def __init__(self, table, max_rows=None, max_age=None):
        self.first, self.rule, self.max_rows, self.max_age = table, table.rule, max_rows, max_age
        self.rows, self.updates = {}, 0

    def read(self, ids):
        fresh = Table(self.first.spec, self.rule, capacity=1, seed=3, dtype=np.float64)
        found = np.empty((len(ids), self.first.spec.dimension))
        fresh.read(np.array(ids, np.int64), found)
        for place, id in enumerate(ids):
            if id in self.rows:
                found[place] = self.rows[id][0]
        return found

    def update(self, ids, gradients):
        self.updates += 1
        for id, gradient in zip(ids, gradients, strict=True):
            values = self.read([id])[0]
            _, state, _ = self.rows.pop(id, (values, self.rule.init(values), 0))
            self.rule.update(values, state, gradient, self.updates)
            self.rows[id] = values, state, self.updates
        for id in list(self.rows):
            used = self.rows[id][2]
            beyond = self.max_rows is not None and len(self.rows) > self.max_rows
            if beyond or (self.max_age is not None and used < self.updates - self.max_age):
                del self.rows[id]


@given(
    pushes=st.lists(st.lists(IDS, unique=True, max_size=30), max_size=12),
    rule=st.sampled_from([Sgd(0.5), Adagrad(0.5), Adam(0.5)]),
    bounds=st.sampled_from([{}, {"max_rows": 7}, {"max_age": 2}, {"max_rows": 20, "max_age": 3}]),
    data=st.randoms(use_true_random=False),
)
def test_any_updates(pushes, rule, bounds, data):
    table = Table(TableSpec("users", 3), rule, capacity=400, seed=3, dtype=np.float64, **bounds)
    oracle = Oracle(table, **bounds)
    seen = sorted({id for ids in pushes for id in ids} | {*EXTREMES, 12345})
    for ids in pushes:
        gradients = np.array([[data.uniform(-1, 1) for _ in range(3)] for _ in ids]).reshape(-1, 3)
        table.update(np.array(ids, np.int64), gradients, oracle.updates + 1)
        oracle.update(ids, gradients)
        found = np.empty((len(seen), 3))
        table.read(np.array(seen, np.int64), found)
        np.testing.assert_array_equal(found, oracle.read(seen))
        assert len(table) == len(oracle.rows)
    assert table.admitted - table.evicted == len(table)


def test_first_values_depend_on_the_seed_the_table_and_the_id_alone():
    def first(name, seed, ids):
        found = np.empty((len(ids), 4))
        Table(TableSpec(name, 4), Sgd(), capacity=8, seed=seed, dtype=np.float64).read(np.array(ids), found)
        return found

    ids = list(range(1000))
    values = first("users", 0, ids)
    np.testing.assert_array_equal(first("users", 0, ids[::-1]), values[::-1])
    assert abs(values.mean()) < 0.05
    assert values.std() == pytest.approx(1, abs=0.05)
    for name, seed in (("users", 1), ("items", 0)):
        assert not np.isclose(first(name, seed, ids), values).any()


def test_uniform_first_values_are_within_their_bound():
    found = np.empty((5000, 3), np.float32)
    Table(TableSpec("users", 3, normal=False, scale=0.25), Sgd(), capacity=8).read(np.arange(5000), found)
    assert -0.25 <= found.min() < -0.249
    assert 0.249 < found.max() < 0.25


def test_a_full_table_says_what_to_set():
    table = Table(TableSpec("users", 2), Sgd(), capacity=3)
    table.update(np.arange(3), np.ones((3, 2), np.float32), 1)
    with pytest.raises(MpidlError, match="table users: full with 3 rows on this server; set max_rows or max_age"):
        table.update(np.array([7]), np.ones((1, 2), np.float32), 2)


@given(st.data())
def test_index_with_removals(data):
    capacity = data.draw(st.sampled_from([1, 5, 37, 600]))
    index, rows = RowIndex(), {}
    for _ in range(data.draw(st.integers(1, 10))):
        new = data.draw(
            st.lists(IDS.filter(lambda id, known=rows: id not in known), unique=True, max_size=capacity - len(rows))
        )
        own = [row for row in range(1, capacity + 1) if row not in rows.values()][: len(new)]
        index.add(np.array(new, np.int64), np.array(own, np.int64))
        rows |= dict(zip(new, own, strict=True))
        gone = data.draw(st.lists(st.sampled_from(sorted(rows)), unique=True)) if rows else []
        index.remove(np.array(gone, np.int64))
        for id in gone:
            del rows[id]
        asked = [*rows, *gone, 77]
        found = np.empty(len(asked), np.int64)
        index.find(np.array(asked, np.int64), found)
        assert found.tolist() == [rows.get(id, 0) for id in asked]
        assert len(index) == len(rows)


def test_index_of_many_ids():
    ids = np.random.default_rng(0).permutation(np.arange(-50_000, 150_000) * 8191)
    index, found = RowIndex(), np.empty(ids.size, np.int64)
    for start in range(0, ids.size, 7001):
        rows = np.arange(start, min(start + 7001, ids.size))
        index.add(ids[rows], rows + 1)
    index.find(ids, found)
    np.testing.assert_array_equal(found, np.arange(ids.size) + 1)
    index.remove(ids[::2])
    index.find(ids, found)
    assert (found[::2] == 0).all()
    np.testing.assert_array_equal(found[1::2], np.arange(1, ids.size, 2) + 1)


def test_order_of_use():
    entries = Entries()
    entries.reserve(5)
    three, one, four = rows = entries.make(np.array([30, 10, 40]))
    entries.use(rows, 1)
    entries.use(np.array([three]), 2)
    assert entries.since(0).tolist() == [one, four, three]
    assert entries.since(1).tolist() == [three]
    assert entries.evict(0, 1).tolist() == []
    assert entries.evict(1, 0).tolist() == [10]
    entries.reserve(2)
    again, five = rows = entries.make(np.array([10, 50]))
    assert again == one
    entries.use(rows, 3)
    entries.use(np.array([four]), 4)
    assert entries.since(0).tolist() == [three, again, five, four]
    assert entries.evict(1, 4).tolist() == [30, 10, 50]
    assert entries.evict(9, 9).tolist() == [40]
    assert entries.since(0).size == 0


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_servers_own_equal_parts(servers):
    ids = np.arange(70_000) * 64
    counts = np.bincount(owner(ids, servers), minlength=servers)
    assert counts.size == servers
    assert abs(counts / ids.size * servers - 1).max() < 0.05


IN_A_NEW_PROCESS = """
import sys
import numpy as np
from mpidl.jit import Compiled
from mpidl.rules import Adam
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table

def loaded():
    values = [each for name in sys.modules if name.startswith("mpidl.") for each in vars(sys.modules[name]).values()]
    made = [each.made for each in values if isinstance(each, Compiled)]
    return {each.__name__: len(each.signatures) for each in made if hasattr(each, "signatures")}

rows = Table(TableSpec("users", 3), Adam(), max_rows=4, max_age=3, admission=2)
rows.warm()
assert (len(rows), rows.new) == (0, 0)
before = loaded()
for step in range(1, 6):
    rows.update(np.arange(6) + step, np.ones((6, 3), np.float32), step)
rows.read(np.arange(6), np.empty((6, 3), np.float32))
rows.copy().restore(rows.arrays() | {"ids": np.arange(50, 54)})
assert loaded() == before, (before, loaded())
assert before["evict"] == before["touch"] == 1
"""


def test_after_it_has_been_warmed_a_table_compiles_nothing():
    subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], check=True, timeout=300)
