"""When a worker counts as hanging."""

import sys

import numpy as np
import pytest

from mpidl.survival.watch import BATCHES, SECONDS, TIMES, Pace

#: The processes that the tests look at: one that watches, a worker that may hang, and two others.
OWN, WORKER, OTHERS = 0, 1, (2, 3)


class Node:
    """Processes that compute batches; one of them looks at the worker every second."""

    def __init__(self, done=BATCHES, longest=1.0, hang_after=None):
        self.rows = np.zeros((3, 4), np.int64)
        self.begun, self.done, self.longest = self.rows
        self.rows[:, WORKER] = 1 + done, done, round(longest * 1e9)
        self.pace, self.now, self.alive = Pace(self.rows, OWN, hang_after), 100.0, [OWN, WORKER, *OTHERS]

    def others_compute(self, batches):
        self.begun[OTHERS[0]] += batches
        self.done[OTHERS[0]] += batches

    def look(self, seconds, every=1.0):
        """Return whether the worker counts as hanging once some seconds have passed."""
        found = self.pace.hangs(WORKER, self.alive, self.now)
        for _ in range(round(seconds / every)):
            self.now += every
            found = self.pace.hangs(WORKER, self.alive, self.now)
        return found


def test_a_worker_hangs_in_a_batch_that_takes_minutes_while_others_go_on():
    node = Node()
    node.begun[OTHERS[1]] = 1  # hangs, too
    assert not node.look(SECONDS + 5)
    node.others_compute(BATCHES - 1)
    assert not node.look(5)
    node.others_compute(1)
    assert node.look(1)


def test_a_worker_hangs_for_which_all_others_wait():
    node = Node()
    node.begun[OTHERS[1]] = 1
    assert not node.look(SECONDS + 5)
    node.done[OTHERS[1]] = 1
    assert node.look(1)


def test_those_that_have_died_in_a_batch_are_not_waited_for():
    node = Node()
    node.begun[OTHERS[1]] = 1
    node.alive.remove(OTHERS[1])
    assert node.look(SECONDS + 5)


@pytest.mark.parametrize(
    ("node", "seconds"),
    [
        (Node(), SECONDS - 5),
        (Node(longest=100.0), 100 * TIMES - 5),
        (Node(done=BATCHES - 1), 10 * SECONDS),  # It may compile.
    ],
)
def test_a_worker_that_is_slow_does_not_hang(node, seconds):
    node.look(0)
    node.others_compute(10 * BATCHES)
    assert not node.look(seconds)


def test_a_worker_hangs_in_its_first_batch_if_people_say_after_what_time():
    node = Node(done=0, longest=0.0, hang_after=7.0)
    node.look(0)
    node.others_compute(BATCHES)
    assert not node.look(6)
    assert node.look(2)
    slow = Node(longest=100.0, hang_after=7.0)
    slow.look(0)
    slow.others_compute(BATCHES)
    assert slow.look(8)


def test_a_worker_between_two_batches_does_not_hang():
    node = Node()
    node.done[WORKER] += 1
    assert not node.look(2 * SECONDS)


def test_each_batch_has_its_time():
    node = Node()
    node.look(SECONDS - 5)
    node.rows[:2, WORKER] += 1
    assert not node.look(SECONDS - 5)
    assert node.look(10)


def test_a_process_that_stood_still_itself_begins_anew():
    node = Node()
    node.look(SECONDS - 5)
    assert not node.look(60, every=60.0)
    assert not node.look(SECONDS - 5)
    assert node.look(10)


def test_what_a_process_shows_of_its_batches(monkeypatch):
    monkeypatch.setattr(sys, "gettrace", lambda: None)  # where the tests' coverage is measured
    node = Node()
    with node.pace.computing():
        assert node.rows[:2, OWN].tolist() == [1, 0]
    with pytest.raises(ZeroDivisionError), node.pace.computing():
        raise ZeroDivisionError
    assert node.rows[:2, OWN].tolist() == [2, 2]
    assert 0 < node.pace.longest(OWN) < 10


def test_a_debugger_takes_its_time():
    node, before = Node(), sys.gettrace()
    sys.settrace(lambda *each: None)
    try:
        with node.pace.computing():
            assert node.begun[OWN] == node.done[OWN]
    finally:
        sys.settrace(before)
