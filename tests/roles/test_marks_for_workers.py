"""Servers make the marks of a worker that hangs: what is in the checkpoint then, whatever the worker does meanwhile."""

import time
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.data.schedule import Portions, Schedule
from mpidl.parameters import Range
from mpidl.roles import checkpoint_coordinator
from mpidl.roles.checkpoint_coordinator import CheckpointCoordinator
from mpidl.roles.instructions import Save
from mpidl.roles.served import ServedShard
from mpidl.rules import Sgd
from mpidl.shards import ledger
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage.position import Position, ReplicaPosition
from mpidl.transport.protocol import (
    MARK,
    STOPPED,
    TAKINGS,
    WORKER_STATUS,
    Doing,
    Order,
    Phase,
    PushMessage,
    SavedFiles,
    ShardCut,
    State,
)

#: A worker that goes on, one that hangs, and a shard of two chunks.
LIVE, HANGS, SIZE = 0, 1, 2
ORDER, CUT = Order(1, 0, Phase.TRAIN), Order(1, 0, Phase.TRAIN, cut=1)


class Server:
    """A server of one shard, of which each element counts pushes."""

    rank = 1

    def __init__(self, number, tmp_path):
        shard = Shard(Range(0, SIZE), np.zeros(SIZE), ScheduledRule(Sgd(1.0)), ApplyAtOnce(), 1)
        self.reports, self.vectors, self.ledger = self, {}, np.zeros(ledger.size(2), np.int64)
        self.inbox, self.cuts, self.files = self, None, []
        self.served = ServedShard(
            number, shard, 0, tmp_path, lambda order: tmp_path, workers=2, portion=int, deterministic=False,
            save=lambda directory, number, range, state, copied: self.files.append(state["parameters"].copy()),
        )  # fmt: skip
        self.served.bind(self)

    def server(self, number):
        return self

    def waiting(self):
        return []

    def saved(self, saved):
        if saved.cuts is not None:
            (_, self.cuts) = saved.cuts

    def ignore(self, *arguments, **options):
        """Do nothing."""

    post = show_cut = show_clock = wake_workers = ignore

    def message(self, worker, push, chunk):
        batch = 1 if chunk == MARK else 10 * worker + push
        self.served.apply(PushMessage(worker, push, chunk, 0, np.array([-1.0]), (batch, batch)))

    def copy(self):
        """Return the parameters in the checkpoint."""
        self.served.save(CUT)
        while not self.files:
            time.sleep(1e-4)
        return self.files[0]


def interleavings(one, other):
    """Yield all orders of two sequences."""
    size = len(one) + len(other)
    for places in combinations(range(size), len(one)):
        first, second = iter(one), iter(other)
        yield [next(first) if i in places else next(second) for i in range(size)]


#: What the worker does when it comes back: a late push, its own mark, and another push.
LATE = [(HANGS, 1, 1), (HANGS, 1, 0), (HANGS, 2, MARK), (HANGS, 2, 1), (HANGS, 2, 0)]


def test_a_mark_made_for_a_worker_has_the_same_pushes_on_all_shards_or_counts_for_nothing(tmp_path):
    """One after another, all interleavings of a mark, a late push and the worker's own mark, on each of two shards."""
    ends = []
    for steps in interleavings(LATE, [(LIVE, 1, MARK), CUT]):
        server = Server(0, tmp_path)
        for worker in (LIVE, HANGS):
            for chunk in (1, 0):
                server.message(worker, 0, chunk)
        for step in steps:
            if isinstance(step, Order):
                server.served.save(step)
            else:
                server.message(*step)
        ends.append((server.cuts, server.copy().tolist(), server.served.shard.parameters.tolist()))
    kinds = set()
    for cuts, copy, present in ends:
        cut = cuts[HANGS]
        kinds.add(cut)
        assert cuts[LIVE][:2] == (1, 0)
        assert present == [4.0] * SIZE
        if cut.pushes >= 0:
            assert copy == [1.0 + cut.pushes] * SIZE
            assert cut.last == 10 + cut.pushes - 1
    assert kinds == {ShardCut(1, 10, False), ShardCut(2, 11, False), ShardCut(2, 11, True), ShardCut(-1, -1, False)}


def test_a_shard_without_any_mark_makes_all_of_them(tmp_path):
    server = Server(0, tmp_path)
    server.served.save(ORDER)
    assert server.cuts is None
    server.served.save(CUT)
    assert server.cuts == {LIVE: ShardCut(0, -1, False), HANGS: ShardCut(0, -1, False)}
    server.cuts = None
    server.served.save(CUT)
    server.served.save(Order(2, 0, Phase.TRAIN, cut=1))
    assert server.cuts is None


# The coordinator.


class Link:
    """The coordinator's link, with what the workers have taken."""

    def __init__(self, taken):
        self.posted = self.orders = self
        self.reports, self.cuts, self._taken = [], [], taken
        self.settled, self._given_back = {}, {}
        self.workers = np.zeros(2, WORKER_STATUS)
        self.workers["state"], self.workers["batches"] = State.WORKING, 1

    def saved(self):
        found, self.reports = self.reports, []
        return found

    def save(self, *numbers):
        """Give no order."""

    decide_round = save

    def cut(self, number):
        self.cuts.append(number)

    def longest(self):
        return 0.0

    def given_back(self, order):
        return self._given_back

    def taken(self, worker):
        """Return what a worker has taken; if it dies right after that, another gives back what is `settled`."""
        self._given_back = self.settled
        return self._taken


@pytest.fixture
def coordinator(monkeypatch):
    """Return a function that orders a checkpoint, which the second of two workers doesn't mark."""
    monkeypatch.setattr(checkpoint_coordinator, "MARKED_AFTER", -1.0)

    def made(taken=([1], [], 0)):
        given = SimpleNamespace(run=SimpleNamespace(deterministic=False), checkpoint=SimpleNamespace(patience=-1.0))
        job = SimpleNamespace(config=given, checkpoint=None)
        placed = SimpleNamespace(
            job=job, replicas=2, position=Position(0, 0, 0.0, 0, []), replicas_resume=False,
            schedule=Schedule(Portions(100, 10, 20, seed=0), epochs=4),
        )  # fmt: skip
        files = SimpleNamespace(complete=lambda order, position, shards, names: completed.append((position, names)))
        completed, found = [], CheckpointCoordinator(placed, files, 2, cuts=True)
        found.link = Link(taken)
        found.bind(found.link)
        found.order(Save(last=True), taken=2, seconds=1.0)
        found.done, found.patience = completed, given.checkpoint
        assert found.completed() is None
        assert found.link.cuts == [1]
        own = ReplicaPosition(batches=1, samples=10, working=[(0, 1)])
        found.link.reports = [SavedFiles(1, shards=[0]), SavedFiles(1, shards=[1]), SavedFiles(1, replicas={LIVE: own})]
        return found

    return made


def report(coordinator, *cuts):
    live = ShardCut(1, 0, True)
    coordinator.link.reports += [
        SavedFiles(1, cuts=(shard, {LIVE: live, HANGS: cut})) for shard, cut in enumerate(cuts)
    ]
    while coordinator.active:
        if (found := coordinator.completed()) is not None:
            return found
    raise AssertionError("it has not ended")


@pytest.mark.parametrize("marked", [False, True])
def test_what_a_worker_had_taken_and_not_pushed_is_left(coordinator, marked):
    saving = coordinator()
    late = ReplicaPosition(batches=9, samples=90)
    if not marked:  # Else it hangs between its mark and its report.
        saving.link.reports.append(SavedFiles(1, replicas={HANGS: late}, files=["replica-1.h5"]))
    report(saving, ShardCut(1, 2, marked), ShardCut(1, 2, True))
    ((position, files),) = saving.done
    assert (position.step, position.samples, position.unfinished) == (2, 20, [(0, 1), (1, 1)])
    assert position.replicas[HANGS] == ReplicaPosition(batches=0, samples=0, working=[(1, 1)], cut=True)
    assert (files, saving.cut_off) == ([], {HANGS})


def test_what_is_given_back_for_a_worker_after_the_look_at_it_is_not_handed_out_twice(coordinator):
    saving = coordinator()
    saving.link.settled = {-1: (1, 1)}
    report(saving, *[ShardCut(1, 2, False)] * 2)
    ((position, _),) = saving.done
    assert (position.replicas[HANGS].working, position.passed_over) == ([(1, 1)], [])


@pytest.mark.parametrize(
    ("cuts", "taken"),
    [
        ([ShardCut(1, 2, False), ShardCut(2, 3, True)], ([1], [], 0)),
        ([ShardCut(1, 2, False), ShardCut(2, 3, False)], ([1], [], 0)),
        ([ShardCut(-1, -1, False), ShardCut(-1, -1, False)], ([1], [], 0)),
        ([ShardCut(1, 2, False), ShardCut(1, 2, False)], None),  # It is taking a ticket.
    ],
)
def test_what_is_no_cut_of_all_shards_is_given_up(coordinator, cuts, taken):
    saving = coordinator(taken)
    assert report(saving, *cuts)[1] is False
    assert (saving.done, saving.active) == ([], False)


def test_a_worker_that_has_ended_meanwhile_is_waited_for(coordinator):
    """No replica could go on from the clock that says so."""
    saving = coordinator(([1], [], STOPPED))
    assert report(saving, *[ShardCut(1, 2, False)] * 2)[1] is False


def test_a_disk_that_is_slow_is_no_hang(coordinator):
    """A worker that goes on, or has ended, is waited for: its vectors aren't given up for a file that takes long."""
    saving = coordinator()
    cuts = {LIVE: ShardCut(1, 0, True), HANGS: ShardCut(1, 2, True)}
    saving.link.reports += [SavedFiles(1, cuts=(shard, cuts)) for shard in (0, 1)]
    saving.link.workers["state"][HANGS] = State.TRAINED
    assert [saving.completed() for _ in range(3)] == [None] * 3
    late = ReplicaPosition(batches=2, samples=20)
    saving.link.reports.append(SavedFiles(1, replicas={HANGS: late}, files=["replica-1.h5"]))
    report(saving)
    ((position, files),) = saving.done
    assert (position.replicas[HANGS], files, saving.cut_off) == (late, ["replica-1.h5"], set())


def test_an_evaluation_may_take_the_patience_of_checkpoints(coordinator):
    saving = coordinator()
    saving.order(Save(), taken=2, seconds=1.0)
    saving.patience.patience, saving.link.workers["doing"][HANGS] = 60.0, Doing.EVALUATION
    assert (saving.completed(), saving.link.cuts) == (None, [1])


@pytest.mark.parametrize("last", [-1, 2])
def test_a_worker_that_has_forgotten_what_it_had_taken_is_waited_for(coordinator, last):
    """It went on before the coordinator looked."""
    saving = coordinator((list(range(100, 100 + TAKINGS)), [], 0))
    assert report(saving, *[ShardCut(int(last >= 0), last, False)] * 2)[1] is False
