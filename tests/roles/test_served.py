"""A shard as its server serves it: rounds of pushes, policies that wait for a time, and marks for workers that hang."""

import math
import threading
import time
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.roles import server as module
from mpidl.roles.served import ServedShard
from mpidl.rules import Sgd
from mpidl.shards import ledger
from mpidl.shards.policies import ApplyAtOnce, FirstOfStep
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.transport.protocol import END, MARK, REQUEST, Order, Phase, PushMessage, ShardCut


class Transport:
    """A server's transport, its link, its inbox and its back-off."""

    rank = 1

    def __init__(self, workers, size=1):
        self.inbox = self.orders = self.reports = self
        self.vectors, self.ledger = {"parameters": np.zeros(size)}, np.zeros(ledger.size(workers), np.int64)

    def server(self, number):
        return self

    def ignore(self, *arguments, **options):
        """Do nothing."""

    post = show_cut = show_clock = wake_workers = acknowledge = reset = progress = answer_fetches = ignore


def shard(size=1, policy=None):
    return Shard(Range(0, size), np.zeros(size), ScheduledRule(Sgd(1.0)), policy or ApplyAtOnce(), 1)


# Rounds of a deterministic server: a push of every worker that trains, and at once what is between pushes.


class Rings(Transport):
    """Messages of `late` arrive when their workers have been found not to wait."""

    def __init__(self, rings, late):
        super().__init__(2)
        self.rings, self._late = rings, late

    def waiting(self):
        found = [worker for worker, ring in enumerate(self.rings) if ring]
        for worker, ring in enumerate(self.rings):
            if not ring and self._late.get(worker):
                ring.append(self._late[worker].pop(0))
        return found

    def pending(self, worker):
        return len(self.rings[worker])

    def head(self, worker):
        return PushMessage(worker, 0, self.rings[worker][0], 0, np.ones(1), (0, 0))

    def release(self, worker):
        self.rings[worker].pop(0)


def in_rounds(rings, late):
    found = ServedShard(
        0, shard(), 0, Path(), lambda order: Path(), workers=2, portion=int, deterministic=True, save=print
    )
    found.bind(Rings(rings, late))
    applied = []
    found.apply = lambda message: applied.append((message.worker, message.chunk))
    return found, applied


def test_a_round_has_a_chunk_of_every_worker():
    rings = [[0, 0], []]
    server, applied = in_rounds(rings, {})
    assert not server.round()
    rings[1].append(0)
    assert server.round()
    assert applied == [(0, 0), (1, 0)]
    assert not server.round()


def test_what_is_between_pushes_waits_for_no_worker():
    server, applied = in_rounds([[0], [REQUEST, MARK, 0]], {})
    assert all(server.round() for _ in range(3))
    assert applied == [(1, REQUEST), (1, MARK), (0, 0), (1, 0)]


def test_a_request_that_arrives_late_is_not_taken_for_a_push():
    server, applied = in_rounds([[0], []], {1: [REQUEST, 0]})
    for _ in range(5):
        server.round()
    assert applied == [(1, REQUEST), (0, 0), (1, 0)]


def test_the_end_of_a_worker_is_in_a_round():
    server, applied = in_rounds([[0], [END]], {})
    assert server.round()
    assert applied == [(0, 0), (1, END)]


# An idle server wakes up when its shards' policies are due.

GRACE = 3.0


class Clock:
    """Time in which nothing lasts but sleep."""

    def __init__(self):
        self.now = 10.0

    def perf_counter(self):
        return self.now

    thread_time = perf_counter


class Timed(Transport):
    """A push at each of some times, then the end."""

    crowded = False

    def __init__(self, clock, pushes, until):
        super().__init__(3)
        self._clock, self._pushes, self._until = clock, pushes, until
        self.slept, self.shown, self.woken = [], [], []

    def backoff(self):
        return self

    def read(self):
        phase = Phase.TRAIN if self._clock.now < self._until else Phase.EXIT
        return Order(number=0, last=0, phase=phase)

    def waiting(self):
        return [worker for worker, (due, _) in self._pushes.items() if due <= self._clock.now]

    def drain(self, worker, most):
        _, fetched = self._pushes.pop(worker)
        yield PushMessage(worker, 0, 0, fetched, np.array([1.0 + worker]), (0, 0))

    def pause(self, longest=math.inf):
        self.slept.append(longest)
        others = [due - self._clock.now for due, _ in self._pushes.values()]
        self._clock.now += min(5.0, longest, *others)
        return True

    def show_clock(self, clock):
        self.shown.append((self._clock.now, clock))

    def wake_workers(self):
        self.woken.append(self._clock.now)

    def answer_fetches(self):
        return False


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Return a function that lets a server work: with pushes as {worker: (time, fetched)}, until a time."""

    def serve(pushes, until, workers=3):
        clock = Clock()
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "timer", lambda crowded: clock.perf_counter)
        own, rank = shard(policy=FirstOfStep(1, workers, GRACE)), Timed(clock, dict(pushes), until)
        server = module.Server(0, {0: own}, tmp_path, None, workers=workers)
        server.bind(rank)
        server.run()
        return SimpleNamespace(shard=own, rank=rank, now=clock.now)

    return serve


def test_it_sleeps_no_longer_than_until_the_window_ends_and_wakes_the_workers(served):
    found = served({0: (11.0, 0)}, until=20.0)
    # A step is shown when the window ends, 3 s after the push, and not when something else wakes the server.
    assert found.rank.slept[:3] == [math.inf, GRACE, math.inf]
    assert found.rank.shown[-1] == (14.0, 1)
    assert found.rank.woken == [14.0]
    assert found.shard.parameters.tolist() == [-1.0]


def test_pushes_within_the_window_are_in_and_one_after_it_is_dropped(served):
    found = served({0: (11.0, 0), 1: (13.5, 0), 2: (14.5, 0)}, until=20.0)
    assert found.shard.parameters.tolist() == [-1.5]
    assert (found.shard.clock, found.shard.pushes, found.shard.dropped) == (1, 3, 1)
    assert found.rank.woken == [14.0]


def test_it_waits_for_nobody_when_all_have_pushed(served):
    found = served({0: (11.0, 0), 1: (12.0, 0)}, until=20.0, workers=2)
    assert found.rank.woken == [12.0]
    assert found.rank.slept[-1] == math.inf


# Servers make the marks of a worker that hangs: the same pushes are in the checkpoint on all shards.

#: A worker that goes on, one that hangs, and a shard of two chunks.
LIVE, HANGS, SIZE = 0, 1, 2
ORDER, CUT = Order(1, 0, Phase.TRAIN), Order(1, 0, Phase.TRAIN, cut=1)


class Server(Transport):
    """A server of one shard, of which each element counts pushes."""

    def __init__(self, number, tmp_path):
        super().__init__(2, SIZE)
        self.cuts, self.files, self.reported = None, [], []
        self.served = ServedShard(
            number, shard(SIZE), 0, tmp_path, lambda order: tmp_path, workers=2, portion=int, deterministic=False,
            save=lambda directory, number, range, state, copied: self.files.append(state["parameters"].copy()),
        )  # fmt: skip
        self.served.bind(self)

    def waiting(self):
        return []

    def saved(self, saved):
        if saved.cuts is not None:
            (_, self.cuts) = saved.cuts
        self.reported += saved.shards

    def message(self, worker, push, chunk, order=1):
        batch = order if chunk == MARK else 10 * worker + push
        self.served.apply(PushMessage(worker, push, chunk, 0, np.array([-1.0]), (batch, batch)))

    def see_through(self, order):
        """Serve under an order that stays the same until its checkpoint is reported, at most a minute."""
        begun = time.monotonic()
        while not self.reported and time.monotonic() - begun < 60:
            self.served.serve(order, 0.0)
            time.sleep(1e-4)

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


@pytest.mark.parametrize("last", [MARK, END])
def test_a_checkpoint_is_written_and_reported_though_its_order_stays_the_same(tmp_path, last):
    """Once all workers have made their marks or have ended, which is after the order has been seen."""
    server = Server(0, tmp_path)
    server.served.serve(ORDER, 0.0)
    for worker in (LIVE, HANGS):
        server.message(worker, 0, last)
    server.see_through(ORDER)
    assert (len(server.files), server.reported) == (1, [0])
    server.served.serve(ORDER, 0.0)
    assert (len(server.files), server.reported) == (1, [0])


class Slow:
    """What is kept beside a shard, gathered once it may be."""

    def __init__(self):
        self.may = threading.Event()

    def arrays(self):
        assert self.may.wait(60)
        return {}

    def copy(self):
        return self

    def ignore(self, *arguments):
        """Do nothing."""

    load = end_push = end_worker = settle = ignore


def test_pushes_and_the_next_checkpoint_go_on_while_rows_are_gathered(tmp_path):
    server = Server(0, tmp_path)
    server.served.shard.side_state = beside = Slow()
    for number in (1, 2):
        order = Order(number, 0, Phase.TRAIN)
        for worker in (LIVE, HANGS):
            for chunk in (1, 0):
                server.message(worker, number - 1, chunk)
        for worker in (LIVE, HANGS):
            server.message(worker, number, MARK, number)
        server.served.serve(order, 0.0)
    assert server.served.shard.parameters.tolist() == [4.0] * SIZE
    beside.may.set()
    server.see_through(order)
    while len(server.files) < 2:
        time.sleep(1e-4)
    assert sorted(each.tolist() for each in server.files) == [[2.0] * SIZE, [4.0] * SIZE]


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
