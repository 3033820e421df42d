"""The coordinator's part in checkpoints, with a job and a link that only note what they are asked for."""

import threading
import time
from types import SimpleNamespace

import pytest

from mpidl.data.schedule import Portions, Schedule
from mpidl.roles.checkpoint_coordinator import CheckpointCoordinator
from mpidl.roles.instructions import Save
from mpidl.storage.position import Position, ReplicaPosition
from mpidl.transport.protocol import NO_MORE, SavedFiles

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

    def given_back(self, order):
        return {}


class Checkpoints:
    """Checkpoints that are completed when the test lets them."""

    def __init__(self):
        self.may_complete, self.completed, self.whole = threading.Event(), [], True

    def complete(self, order, position, shards, files):
        self.may_complete.wait(60)
        self.completed.append((order, position.step, shards, files))
        return self.whole

    def is_complete(self, order, step):
        return (order, step) in [each[:2] for each in self.completed]


@pytest.fixture
def saving():
    made = coordinator(Checkpoints())
    yield made
    made.files.may_complete.set()


def coordinator(files):
    job = SimpleNamespace(config=SimpleNamespace(run=SimpleNamespace(deterministic=False)))
    schedule = Schedule(Portions(100, 10, 20, seed=0), epochs=4)
    placed = SimpleNamespace(
        job=job, replicas=REPLICAS, position=Position(0, 0, 0.0, 0, []), schedule=schedule, replicas_resume=False
    )
    link = Link()
    made = CheckpointCoordinator(placed, files, SHARDS, intermediaries=1)
    made.bind(link)
    made.files, made.link = files, link
    return made


def order(saving, last=False, interim=False):
    saving.order(Save(last, interim=interim), taken=0, seconds=1.0)


def report(saving, number, batches):
    """Report all that there is to an order."""
    place = ReplicaPosition(batches=batches, samples=10 * batches)
    saving.link.reports += [SavedFiles(number, intermediary=0, files=["relay.h5"])]
    saving.link.reports += [SavedFiles(number, shards=[shard]) for shard in range(SHARDS)]
    saving.link.reports += [
        SavedFiles(number, replicas={each: place}, files=[f"{each}.h5"]) for each in range(REPLICAS)
    ]


def wait(saving):
    return wait_for(saving.completed)


def wait_for(something):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := something():
            return found
    raise AssertionError("the checkpoint is never complete")


def test_nothing_is_completed_before_all_have_reported(saving):
    order(saving)
    saving.files.may_complete.set()
    report(saving, 1, 3)
    reports, saving.link.reports = saving.link.reports, []
    for each in (reports[0], reports[-1], *reports[1:-1]):
        assert [saving.completed() for _ in range(3)] == [None] * 3
        assert saving.files.completed == []
        saving.link.reports.append(each)
    assert (wait(saving)[0].step, saving.active) == (6, False)
    assert saving.files.completed == [(1, 6, SHARDS, ["0.h5", "1.h5", "relay.h5"])]


def test_files_that_take_long_to_write_hold_up_nobody(saving):
    """Every rank's counters wait for the coordinator: while a disk is slow, it must come back at once."""
    order(saving)
    report(saving, 1, 3)
    started = time.monotonic()
    assert [saving.completed() for _ in range(50)] == [None] * 50
    assert time.monotonic() - started < 30
    assert saving.files.completed == []
    saving.files.may_complete.set()
    assert wait(saving)[0].step == 6


def test_a_newer_order_gives_up_what_is_missing_of_the_last(saving):
    saving.files.may_complete.set()
    order(saving)
    report(saving, 1, 3)
    saving.link.reports.pop()
    saving.completed()
    order(saving, last=True)
    assert saving.link.orders == [(1, 0), (3, 3)]
    report(saving, 1, 3)  # too late
    assert saving.completed() is None
    report(saving, 3, 5)
    assert wait(saving)[0].step == 10
    assert [completed[:2] for completed in saving.files.completed] == [(3, 10)]


def test_a_checkpoint_that_is_being_completed_is_completed_before_a_newer_one(saving):
    order(saving)
    report(saving, 1, 3)
    saving.completed()
    order(saving, last=True)
    report(saving, 3, 5)
    assert [saving.completed() for _ in range(3)] == [None] * 3
    saving.files.may_complete.set()
    assert wait(saving)[0].step == 10
    assert [completed[:2] for completed in saving.files.completed] == [(1, 6), (3, 10)]


def test_an_interim_checkpoint_has_an_even_order_and_may_fail(saving):
    saving.files.may_complete.set()
    for number, (interim, whole) in enumerate([(False, True), (True, True), (True, False), (False, True)]):
        saving.files.whole = whole
        order(saving, interim=interim)
        assert (saving.number % 2 == 0) == interim
        report(saving, saving.number, number)
        assert wait(saving)[1] == whole
    assert [each for each, _ in saving.link.orders] == [1, 2, 4, 5]


def test_the_data_that_a_stopped_run_has_not_handed_out_are_not_done(saving):
    """The counter that replicas read says by then that there are none."""
    saving.files.may_complete.set()
    saving.stop(3)
    order(saving, last=True)
    replicas = {number: ReplicaPosition(batches=3, samples=30) for number in range(REPLICAS)}
    saving.link.reports.append(SavedFiles(1, list(range(SHARDS)), replicas, [], NO_MORE, intermediary=0))
    assert wait(saving)[0].next_portion == 3


@pytest.mark.parametrize("reached", [0, 1, 2])
def test_another_coordinator_goes_on_with_the_orders(saving, reached):
    """A checkpoint that has got its name counts, if it was recorded that it was about to get it."""
    kept = []
    saving.before_completion = lambda: kept.append(saving.state())
    order(saving)
    report(saving, 1, 3)
    before = saving.state()
    assert saving.completed() is None
    assert len(kept) == 1, "the state is kept before the index is written"
    if reached == 2:
        saving.files.may_complete.set()
        wait_for(lambda: saving.files.completed)
    another = coordinator(saving.files)
    # The order that was given last may not be in the state yet.
    assert another.load(kept[0] if reached else before, ordered=1) == (6 if reached == 2 else None)
    assert (another.number, another.active, another.link.orders) == (1, False, [])
    saving.files.may_complete.set()
    order(another)
    assert another.link.orders == [(3, 0)]
    report(another, 1, 3)  # to the process that has died
    report(another, 3, 5)
    assert wait(another)[0].step == 10
    assert another.state()["completing"] is None
