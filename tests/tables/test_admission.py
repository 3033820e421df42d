"""The filter that counts touches: only the lower of an id's two counters is increased, and all of them age."""

import numpy as np

from mpidl.tables.admission import touch
from mpidl.tables.hashing import mixed

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
