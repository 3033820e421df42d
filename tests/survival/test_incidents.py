"""The table of a job's processes, as two of them see it."""

import fcntl

import numpy as np
import pytest

from mpidl.survival.table import INCIDENTS, ProcessState, ProcessTable


@pytest.fixture
def path():
    path = ProcessTable.create(3)
    yield path
    path.unlink()


@pytest.fixture
def tables(path):
    return ProcessTable(path, 3), ProcessTable(path, 3)


def test_all_live_and_play_their_own_ranks_at_first(tables):
    for table in tables:
        assert table.alive == [0, 1, 2]
        assert [table.played_by(process) for process in range(3)] == [[0], [1], [2]]
        assert (table.deaths, table.orphans(), table.failed, len(table.incidents())) == (0, [], False, 0)


def test_the_ranks_of_a_dead_process_are_orphans_until_another_plays_them(tables):
    own, other = tables
    own.states[1], own.states[2] = ProcessState.DEAD, ProcessState.LEFT
    assert (other.alive, other.deaths, other.orphans()) == ([0], 1, [1])
    own.processes[1] = 0
    assert (other.orphans(), other.played_by(0), other.played_by(1)) == ([], [0, 1], [])


def test_one_process_says_first_that_the_job_fails(tables):
    own, other = tables
    assert (own.fail(), other.fail(), own.fail()) == (True, False, False)
    assert other.failed


def test_incidents_beyond_the_room_for_them_are_left_out(tables):
    own, other = tables
    before = own.pids.tolist(), own.processes.tolist()
    for number in range(INCIDENTS * 3 + 5):
        own.note(rank=number % 3, by=-1, workers=number, time=number / 2)
    assert other.incidents()["workers"].tolist() == list(range(INCIDENTS * 3))
    assert other.incidents(20)["workers"].tolist() == [20, 21, 22, 23]
    assert np.array_equal(other.incidents()["time"], np.arange(INCIDENTS * 3) / 2)
    assert before == (own.pids.tolist(), own.processes.tolist())


def test_only_one_process_at_a_time_is_in_the_lock(path):
    own = ProcessTable(path, 3)
    with path.open() as other:
        with own.locked(), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
