"""Activities of a rank, and the figures that count their time."""

import time

import pytest

from mpidl.transport.status import Activity, WorkerStatus


@pytest.fixture
def status():
    """A worker's status whose time only passes when the test says so."""
    found, found.now = WorkerStatus(), 0.0
    for each in vars(found).values():
        if isinstance(each, Activity):
            each.timer = lambda: found.now
    return found


def test_an_activity_within_another_interrupts_it(status):
    with status.gradient:
        status.now += 1
        with status.push:
            status.now += 10
        status.now += 2
        with status.push:
            status.now += 20
    assert status.figures["computing_seconds"] == 3
    assert status.figures["pushing_seconds"] == 30


def test_an_activity_within_itself_counts_once(status):
    with status.wait:
        status.now += 1
        with status.push, status.wait:
            status.now += 10
        status.now += 2
    assert status.figures["waiting_seconds"] == 13
    assert status.figures["pushing_seconds"] == 0


def test_an_error_ends_an_activity(status):
    def fail():
        with status.wait:
            status.now += 10
            raise KeyError

    with status.evaluate:
        status.now += 1
        with pytest.raises(KeyError):
            fail()
        status.now += 2
    with status.step:
        status.now += 5
    assert status.figures["evaluation_seconds"] == 3
    assert status.figures["waiting_seconds"] == 10
    assert status.figures["overhead_seconds"] == 5


def test_final_evaluations_are_not_counted(status):
    with status.wait:
        with status.test:
            status.now += 10
        status.now += 1
    assert status.figures["waiting_seconds"] == 1
    assert status.figures["evaluation_seconds"] == 0


def test_where_ranks_share_cores_only_work_is_measured_by_the_time_of_its_thread():
    status = WorkerStatus()
    status.bind(crowded=True)
    with status.step:
        with status.wait:
            time.sleep(0.02)
        time.sleep(0.02)
    assert status.figures["waiting_seconds"] >= 0.02
    assert 0 < status.figures["overhead_seconds"] < 0.02
