"""The coordinator's part in checkpoints, with a job and a link that only note what they are asked for."""

import threading
import time
from types import SimpleNamespace

import pytest

from mpidl.data.schedule import Portions, Schedule
from mpidl.roles.checkpoint_coordinator import CheckpointCoordinator
from mpidl.storage.position import Position, ReplicaPosition
from mpidl.transport.protocol import NO_MORE, Saved

SHARDS, REPLICAS = 2, 2


class Orders(list):
    def save(self, number, last):
        self.append((number, last))

    def decide_round(self, number):
        pass


class Link:
    def __init__(self):
        self.orders, self.reports, self.posted = Orders(), [], self

    def saved(self):
        reports, self.reports = self.reports, []
        return reports


class Job:
    """A job whose checkpoints are completed when the test lets them."""

    def __init__(self):
        self.position, self.replicas = Position(0, 0, 0.0, 0, []), REPLICAS
        self.schedule = Schedule(Portions(100, 10, 20, seed=0), epochs=4)
        self.config = SimpleNamespace(run=SimpleNamespace(deterministic=False))
        self.may_complete, self.completed = threading.Event(), []


def complete_checkpoint(job, order, position, shards, files):
    job.may_complete.wait(10)
    job.completed.append((order, position.step, shards, files))


@pytest.fixture
def checkpoints(monkeypatch):
    monkeypatch.setattr("mpidl.roles.checkpoint_coordinator.complete_checkpoint", complete_checkpoint)
    job, link = Job(), Link()
    made = CheckpointCoordinator(job, SHARDS, others=1)
    made.bind(link)
    made.job, made.link = job, link
    yield made
    job.may_complete.set()


def order(checkpoints, last=False):
    checkpoints.order(last, taken=0, seconds=1.0, position=None)


def report(checkpoints, number, batches):
    """Report all that there is to an order."""
    place = ReplicaPosition(batches=batches, samples=10 * batches)
    checkpoints.link.reports += [Saved(number, other=0, files=["relay.h5"])]
    checkpoints.link.reports += [Saved(number, shards=[shard]) for shard in range(SHARDS)]
    checkpoints.link.reports += [
        Saved(number, replicas={each: place}, files=[f"{each}.h5"]) for each in range(REPLICAS)
    ]


def wait(checkpoints):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if (position := checkpoints.completed()) is not None:
            return position
    raise AssertionError("the checkpoint is never complete")


def test_nothing_is_completed_before_all_have_reported(checkpoints):
    order(checkpoints)
    checkpoints.job.may_complete.set()
    report(checkpoints, 1, 3)
    reports, checkpoints.link.reports = checkpoints.link.reports, []
    for each in (reports[0], reports[-1], *reports[1:-1]):
        assert [checkpoints.completed() for _ in range(3)] == [None] * 3
        assert checkpoints.job.completed == []
        checkpoints.link.reports.append(each)
    assert (wait(checkpoints).step, checkpoints.active) == (6, False)
    assert checkpoints.job.completed == [(1, 6, SHARDS, ["0.h5", "1.h5", "relay.h5"])]


def test_files_that_take_long_to_write_hold_up_nobody(checkpoints):
    """Every rank's counters wait for the coordinator: while a disk is slow, it must come back at once."""
    order(checkpoints)
    report(checkpoints, 1, 3)
    started = time.monotonic()
    assert [checkpoints.completed() for _ in range(50)] == [None] * 50
    assert time.monotonic() - started < 5
    assert checkpoints.job.completed == []
    checkpoints.job.may_complete.set()
    assert wait(checkpoints).step == 6


def test_a_newer_order_gives_up_what_is_missing_of_the_last(checkpoints):
    checkpoints.job.may_complete.set()
    order(checkpoints)
    report(checkpoints, 1, 3)
    checkpoints.link.reports.pop()
    checkpoints.completed()
    order(checkpoints, last=True)
    assert checkpoints.link.orders == [(1, 0), (2, 2)]
    report(checkpoints, 1, 3)  # too late
    assert checkpoints.completed() is None
    report(checkpoints, 2, 5)
    assert wait(checkpoints).step == 10
    assert [completed[:2] for completed in checkpoints.job.completed] == [(2, 10)]


def test_a_checkpoint_that_is_being_completed_is_completed_before_a_newer_one(checkpoints):
    order(checkpoints)
    report(checkpoints, 1, 3)
    checkpoints.completed()
    order(checkpoints, last=True)
    report(checkpoints, 2, 5)
    assert [checkpoints.completed() for _ in range(3)] == [None] * 3
    checkpoints.job.may_complete.set()
    assert wait(checkpoints).step == 10
    assert [completed[:2] for completed in checkpoints.job.completed] == [(1, 6), (2, 10)]


def test_the_data_that_a_stopped_run_has_not_handed_out_are_not_done(checkpoints):
    """The counter that replicas read says by then that there are none."""
    checkpoints.job.may_complete.set()
    checkpoints.stop(3)
    order(checkpoints, last=True)
    replicas = {number: ReplicaPosition(batches=3, samples=30) for number in range(REPLICAS)}
    checkpoints.link.reports.append(Saved(1, list(range(SHARDS)), replicas, [], NO_MORE, other=0))
    assert wait(checkpoints).next_portion == 3
