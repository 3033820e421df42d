"""Rows in this process: what lookups return, and what is taken of their gradients."""

import numpy as np
import pytest

from mpidl.rules import Sgd
from mpidl.tables.distinct import owner
from mpidl.tables.lookups import TableSpec
from mpidl.tables.sources import FirstRows, TablesInMemory
from mpidl.tables.table import Table

SPECS = [TableSpec("users", 2), TableSpec("items", 3, rows=100, normal=False)]


def source(servers):
    return TablesInMemory(
        [[Table(spec, Sgd(0.5), capacity=100, seed=7, dtype=np.float64) for _ in range(servers)] for spec in SPECS]
    )


@pytest.mark.parametrize("servers", [1, 3])
def test_a_lookup_has_the_rows_of_its_ids(servers):
    first, found = FirstRows(SPECS, 7, np.float64), source(servers)
    ids = np.array([5, -9, 5, 2**63 - 1])
    for each in (first, found):
        lookup = each.look_up(0, ids)
        np.testing.assert_array_equal(lookup.ids[lookup.places], ids)
        assert lookup.rows.shape == (3, 2)
    rows = found.look_up(0, ids)
    np.testing.assert_array_equal(rows.rows[rows.places], lookup.rows[lookup.places])
    assert len(rows.parts) == servers
    assert all((owner(rows.ids[part], servers) == server).all() for server, part in enumerate(rows.parts))


def test_gradients_of_several_lookups_are_summed_by_id():
    rows = source(2)
    one, two, evaluated = (
        rows.look_up(1, np.array([1, 2, 1])),
        rows.look_up(1, np.array([2, 3])),
        rows.look_up(0, np.array([4])),
    )
    one.add(np.array([[1, 0, 0], [0, 1, 0], [2, 0, 0]], float))
    two.gradient = np.full((2, 3), 10.0)
    taken = rows.take()
    assert evaluated.gradient is None
    assert list(taken) == [1]
    found, summed = taken[1]
    assert {id: row.tolist() for id, row in zip(found.ids.tolist(), summed, strict=True)} == {
        1: [3, 0, 0],
        2: [10, 11, 10],
        3: [10, 10, 10],
    }
    assert all((owner(found.ids[part], 2) == server).all() for server, part in enumerate(found.parts))
    assert rows.take() == {}


def test_the_gradient_of_one_lookup_is_not_copied():
    rows = source(1)
    lookup = rows.look_up(0, np.array([4, 4]))
    lookup.gradient = np.ones((1, 2))
    _, gradient = rows.take()[0]
    assert gradient is lookup.gradient


def test_no_id():
    rows = source(2)
    lookup = rows.look_up(0, np.array([], np.int64))
    lookup.add(np.empty((0, 2)))
    found, gradient = rows.take()[0]
    assert found.ids.size == 0
    assert gradient.shape == (0, 2)
