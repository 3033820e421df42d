"""The coordinator's part in checkpoints, with a job and a link that only note what they are asked for."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.data.schedule import Portions, Schedule
from mpidl.roles import checkpoint_coordinator
from mpidl.roles.checkpoint_coordinator import CheckpointCoordinator
from mpidl.roles.events import Save
from mpidl.storage.position import Position, ReplicaPosition
from mpidl.transport.protocol import NO_MORE, STOPPED, TAKINGS, WORKER_STATUS, Doing, SavedFiles, ShardCut, State

SHARDS, REPLICAS = 2, 2
#: A worker that goes on, and one that hangs.
LIVE, HANGS = 0, 1


class Orders(list):
    def __init__(self):
        super().__init__()
        self.cuts = []

    def save(self, number, last):
        self.append((number, last))

    def decide_round(self, number):
        pass

    def cut(self, number):
        self.cuts.append(number)


class Link:
    """The coordinator's link, with what each worker has taken."""

    def __init__(self, taken):
        self.orders, self.reports, self.posted, self._taken = Orders(), [], self, taken
        self.settled, self._given_back = {}, {}
        self.workers = np.zeros(REPLICAS, WORKER_STATUS)
        self.workers["state"], self.workers["batches"] = State.WORKING, 1

    def saved(self):
        reports, self.reports = self.reports, []
        return reports

    def longest(self):
        return 0.0

    def given_back(self, order):
        return self._given_back

    def taken(self, worker):
        """Return what a worker has taken; if it dies right after that, another gives back what is `settled`."""
        self._given_back = self.settled
        return self._taken


class Checkpoints:
    """Checkpoints that are completed when the test lets them."""

    def __init__(self):
        self.may_complete, self.completed, self.whole, self.last = threading.Event(), [], True, None

    def complete(self, order, position, shards, files):
        self.may_complete.wait(60)
        self.completed.append((order, position.step, shards, files))
        self.last = position
        return self.whole

    def is_complete(self, order, step):
        return (order, step) in [each[:2] for each in self.completed]


@pytest.fixture
def saving():
    made = coordinator(Checkpoints(), intermediaries=1)
    yield made
    made.files.may_complete.set()


def coordinator(files, taken=None, **options):
    config = SimpleNamespace(run=SimpleNamespace(deterministic=False), checkpoint=SimpleNamespace(patience=-1.0))
    placed = SimpleNamespace(
        job=SimpleNamespace(config=config, checkpoint=None), replicas=REPLICAS, position=Position(0, 0, 0.0, 0, []),
        schedule=Schedule(Portions(100, 10, 20, seed=0), epochs=4), replicas_resume=False,
    )  # fmt: skip
    made = CheckpointCoordinator(placed, files, SHARDS, **options)
    made.files, made.link, made.patience = files, Link(taken), config.checkpoint
    made.bind(made.link)
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
    another = coordinator(saving.files, intermediaries=1)
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


# Servers make the marks of a worker that hangs: what is in the checkpoint then, whatever the worker does meanwhile.


@pytest.fixture
def hanging(monkeypatch):
    """Return a function that orders a checkpoint, which the second of two workers doesn't mark."""
    monkeypatch.setattr(checkpoint_coordinator, "MARKED_AFTER", -1.0)

    def made(taken=([1], [], 0)):
        found = coordinator(Checkpoints(), taken, cuts=True)
        found.files.may_complete.set()
        found.order(Save(last=True), taken=2, seconds=1.0)
        assert found.completed() is None
        assert found.link.orders.cuts == [1]
        own = ReplicaPosition(batches=1, samples=10, working=[(0, 1)])
        found.link.reports = [SavedFiles(1, shards=[0]), SavedFiles(1, shards=[1]), SavedFiles(1, replicas={LIVE: own})]
        return found

    return made


def report_cuts(saving, *cuts):
    live = ShardCut(1, 0, True)
    saving.link.reports += [SavedFiles(1, cuts=(shard, {LIVE: live, HANGS: cut})) for shard, cut in enumerate(cuts)]
    while saving.active:
        if (found := saving.completed()) is not None:
            return found
    raise AssertionError("it has not ended")


@pytest.mark.parametrize("marked", [False, True])
def test_what_a_worker_had_taken_and_not_pushed_is_left(hanging, marked):
    saving = hanging()
    late = ReplicaPosition(batches=9, samples=90)
    if not marked:  # Else it hangs between its mark and its report.
        saving.link.reports.append(SavedFiles(1, replicas={HANGS: late}, files=["replica-1.h5"]))
    report_cuts(saving, ShardCut(1, 2, marked), ShardCut(1, 2, True))
    position, ((*_, files),) = saving.files.last, saving.files.completed
    assert (position.step, position.samples, position.unfinished) == (2, 20, [(0, 1), (1, 1)])
    assert position.replicas[HANGS] == ReplicaPosition(batches=0, samples=0, working=[(1, 1)], cut=True)
    assert (files, saving.cut_off) == ([], {HANGS})


def test_what_is_given_back_for_a_worker_after_the_look_at_it_is_not_handed_out_twice(hanging):
    saving = hanging()
    saving.link.settled = {-1: (1, 1)}
    report_cuts(saving, *[ShardCut(1, 2, False)] * 2)
    position = saving.files.last
    assert (position.replicas[HANGS].working, position.passed_over) == ([(1, 1)], [])


FORGOTTEN = list(range(100, 100 + TAKINGS)), [], 0


@pytest.mark.parametrize(
    ("cuts", "taken"),
    [
        ([ShardCut(1, 2, False), ShardCut(2, 3, True)], ([1], [], 0)),
        ([ShardCut(1, 2, False), ShardCut(2, 3, False)], ([1], [], 0)),
        ([ShardCut(-1, -1, False), ShardCut(-1, -1, False)], ([1], [], 0)),
        ([ShardCut(1, 2, False), ShardCut(1, 2, False)], None),  # It is taking a ticket.
        (
            [ShardCut(1, 2, False), ShardCut(1, 2, False)],
            ([1], [], STOPPED),
        ),  # It has ended: none could go on from this clock.
        ([ShardCut(0, -1, False), ShardCut(0, -1, False)], FORGOTTEN),  # It went on before the coordinator looked.
        ([ShardCut(1, 2, False), ShardCut(1, 2, False)], FORGOTTEN),
    ],
)
def test_what_is_no_cut_of_all_shards_is_given_up(hanging, cuts, taken):
    saving = hanging(taken)
    assert report_cuts(saving, *cuts)[1] is False
    assert (saving.files.completed, saving.active) == ([], False)


def test_a_disk_that_is_slow_is_no_hang(hanging):
    """A worker that goes on, or has ended, is waited for: its vectors aren't given up for a file that takes long."""
    saving = hanging()
    cuts = {LIVE: ShardCut(1, 0, True), HANGS: ShardCut(1, 2, True)}
    saving.link.reports += [SavedFiles(1, cuts=(shard, cuts)) for shard in (0, 1)]
    saving.link.workers["state"][HANGS] = State.TRAINED
    assert [saving.completed() for _ in range(3)] == [None] * 3
    late = ReplicaPosition(batches=2, samples=20)
    saving.link.reports.append(SavedFiles(1, replicas={HANGS: late}, files=["replica-1.h5"]))
    report_cuts(saving)
    position, ((*_, files),) = saving.files.last, saving.files.completed
    assert (position.replicas[HANGS], files, saving.cut_off) == (late, ["replica-1.h5"], set())


def test_an_evaluation_may_take_the_patience_of_checkpoints(hanging):
    saving = hanging()
    saving.order(Save(), taken=2, seconds=1.0)
    saving.patience.patience, saving.link.workers["doing"][HANGS] = 60.0, Doing.EVALUATION
    assert (saving.completed(), saving.link.orders.cuts) == (None, [1])
