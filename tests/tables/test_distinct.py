"""Loops over ids: distinct ones, sums by id, the filter that counts touches, and counts of updates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpidl.tables.admission import touch
from mpidl.tables.distinct import add_to, distinct, mixed, owner
from mpidl.tables.entries import Entries

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


SIZE = 8
NEVER = 255


def counters_of(id):
    hashed = int(mixed(np.uint64(mixed(np.int64(id)))))
    return hashed % SIZE, (hashed >> 32) % SIZE


def touched(counters, ids, needed=NEVER, hand=0):
    """Touch ids with a hand that halves no counter of theirs; return which are admitted."""
    admitted, place = np.empty(len(ids), np.bool_), np.array([hand], np.int64)
    touch(counters, place, needed, np.array(ids, np.int64), admitted)
    return admitted, int(place[0])


def test_only_the_lower_counter_is_increased():
    id = next(id for id in range(99) if len({*counters_of(id), 0}) == 3)
    one, other = counters_of(id)
    counters = np.zeros(SIZE, np.uint8)
    counters[one] = 5
    touched(counters, [id])
    assert (counters[one], counters[other]) == (5, 1)
    counters[[one, other]] = 2, 2
    touched(counters, [id])
    assert (counters[one], counters[other]) == (3, 3)


def test_the_hand_halves_each_counter_in_turn():
    id = next(id for id in range(99) if {*counters_of(id)} == {3})
    for hand in range(SIZE):
        counters = np.full(SIZE, 100, np.uint8)
        _, place = touched(counters, [id], hand=hand)
        assert place == (hand + 1) % SIZE
        halved = np.flatnonzero(counters < 100).tolist()
        assert halved == [hand]


def test_a_touch_that_admits_is_not_counted():
    id = next(id for id in range(99) if {*counters_of(id)} == {3})
    counters = np.full(SIZE, 2, np.uint8)
    assert touched(counters, [id], needed=3)[0].all()
    assert counters[3] == 2


def test_a_count_stays_at_its_largest_number():
    entries, most = Entries(), 0xFFFFFFFF
    entries.reserve(2)
    rows = entries.make(np.array([5, 7]))
    entries.append(rows, np.array([1, 1]), np.array([most - 1, 3]))
    for update in (2, 3):
        entries.use(rows, update)
    assert entries.memory.array["count"][rows].tolist() == [most, 5]
    assert entries.memory.array["used"][rows].tolist() == [3, 3]
