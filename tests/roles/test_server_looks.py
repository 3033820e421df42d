"""A server that nobody wakes acts on the time when its shards' policies want it to."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards import ledger
from mpidl.shards.policies import FirstOfStep
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.transport.protocol import Order, Phase, PushMessage

GRACE = 3.0


class Clock:
    """Time in which nothing lasts but sleep."""

    def __init__(self):
        self.now = 10.0

    def perf_counter(self):
        return self.now

    thread_time = perf_counter


class Rank:
    """The transport of a server, its link, its inbox and its back-off: a push at each of some times, then the end."""

    rank, crowded = 1, False

    def __init__(self, clock, pushes, until):
        self._clock, self._pushes, self._until = clock, pushes, until
        self.inbox = self.orders = self.reports = self
        self.vectors, self.ledger = {"parameters": np.zeros(1)}, np.zeros(ledger.size(3), np.int64)
        self.slept, self.shown, self.woken = [], [], []

    def server(self, number):
        return self

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

    def ignore(self, *arguments, **options):
        """Do nothing."""

    post = show_cut = reset = progress = ignore


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Return a function that lets a server work: with pushes as {worker: (time, fetched)}, until a time."""
    from mpidl.roles import server as module

    def serve(pushes, until, workers=3):
        clock = Clock()
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "timer", lambda crowded: clock.perf_counter)
        shard = Shard(Range(0, 1), np.zeros(1), ScheduledRule(Sgd(1.0)), FirstOfStep(1, workers, GRACE), 1)
        server, rank = module.Server(0, {0: shard}, tmp_path, None, workers=workers), Rank(clock, dict(pushes), until)
        server.bind(rank)
        server.run()
        return SimpleNamespace(shard=shard, rank=rank, now=clock.now)

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
