"""Distinct ids, grouped by server, and sums of gradients by id."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpidl.tables.distinct import add_to, distinct, owner

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63)]
IDS = st.lists(st.one_of(st.sampled_from(EXTREMES), st.integers(-(2**63), 2**63 - 1)), max_size=50)


@given(ids=IDS, servers=st.integers(1, 5))
def test_each_id_once_and_with_its_server(ids, servers):
    given = np.array(ids, np.int64)
    found = distinct(given, servers)
    assert np.array_equal(found.ids[found.places], given)
    assert len(set(found.ids.tolist())) == found.ids.size == len(set(ids))
    assert [part.start for part in found.parts] == [0, *(part.stop for part in found.parts[:-1])]
    for server, part in enumerate(found.parts):
        assert (owner(found.ids[part], servers) == server).all()
    assert sum(part.stop - part.start for part in found.parts) == found.ids.size


@given(ids=IDS)
def test_gradients_of_equal_ids_are_added_in_order(ids):
    values = np.random.default_rng(0).normal(size=(len(ids), 3))
    found = distinct(np.array(ids, np.int64), 2)
    summed, expected = np.zeros((found.ids.size, 3)), {}
    add_to(summed, found.places, values)
    for id, each in zip(ids, values, strict=True):
        expected[id] = expected.get(id, np.zeros(3)) + each
    assert all(np.array_equal(row, expected[id]) for id, row in zip(found.ids.tolist(), summed, strict=True))
