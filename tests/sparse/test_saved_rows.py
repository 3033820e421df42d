"""Tables of a checkpoint in use: rows by id, first values of others, and servers that go on, be they as many or not."""

from itertools import chain

import h5py
import numpy as np
import pytest
from saved_servers import RULE, SEED, SPECS, Servers, comparable

from mpidl.errors import MpidlError, UsageError
from mpidl.rules import Momentum, Sgd
from mpidl.sparse.messages import plain
from mpidl.sparse.saved import SavedRows, restore, resume
from mpidl.sparse.server_tables import ServerTables
from mpidl.storage.table_files import saved_tables
from mpidl.tables.table import Table


@pytest.fixture(scope="module", params=[{}, {"max_rows": 6}, {"max_age": 3}, {"admission": 3}], ids=str)
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


def test_servers_without_rows_go_on(tmp_path):
    before = Servers(2, admission=3)
    before.update(1)
    resumed = Servers(2, admission=3).load(before.save(tmp_path / "checkpoints"))
    assert [len(part) for part in resumed.tables[0]] == [0, 0]
    for each in (before, resumed):
        each.update(4)
    for own, other in zip(chain(*resumed.tables), chain(*before.tables), strict=True):
        for found, expected in zip(comparable(own, {}), comparable(other, {}), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_damaged_touches_are_one_line(tmp_path):
    before = Servers(1, admission=3)
    checkpoint = before.save(tmp_path / "checkpoints")
    with h5py.File(checkpoint.shards[0], "r+") as file:
        file["tables/users/touches"][-8:] = 127
    with pytest.raises(MpidlError, match="table 'users' has damaged touches"):
        Servers(1, admission=3).load(checkpoint)


def test_too_little_room_is_one_line(saved):
    _, _, checkpoint = saved
    table = Table(SPECS[0], RULE, capacity=2, seed=SEED, dtype=np.float64)
    with pytest.raises(MpidlError, match="table users: full with"):
        restore(table, saved_tables(checkpoint)["users"], 0, 1)


def test_other_tables_are_one_line(saved):
    with pytest.raises(UsageError, match=r"table 'users': found 50 rows of dimension 3, the model has none$"):
        SavedRows(saved[2], SPECS[1:])
