"""Clocks of hosts that don't agree."""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.tracing import feature
from mpidl.tracing.feature import ClockOffset, aligned, compare

#: Seconds by which each host's clock is ahead of the first one's at time 0, and gains on it in each second.
AHEAD, DRIFT = {0: 0.0, 2: 37.5, 3: -1234.0}, {0: 0.0, 2: 2e-5, 3: -1e-4}
#: The lowest rank of each rank's node.
NODES = [0, 0, 2, 3, 2]


class Comm:
    """Messages between threads that are ranks, each of which takes some time by a clock of its own."""

    def __init__(self, rank, world):
        self.rank, self._world = rank, world

    def Send(self, word, dest, tag):
        self._world.boxes[self.rank, dest].put((word.copy(), self._world.passes()))

    def Recv(self, word, source, tag):
        word[:], arrives = self._world.boxes[source, self.rank].get(timeout=60)
        self._world.now = max(self._world.now, arrives)

    def allgather(self, found):
        self._world.found[self.rank] = found
        self._world.barrier.wait()
        return [self._world.found[rank] for rank in range(len(NODES))]


class World:
    """One time for all ranks, in which each message takes 10 to 60 us: only one is under way at any moment."""

    def __init__(self, now):
        self.now, self.random = now, np.random.default_rng(int(now))
        self.boxes = {(one, other): queue.Queue() for one in range(len(NODES)) for other in range(len(NODES))}
        self.barrier, self.found = threading.Barrier(len(NODES), timeout=60), {}

    def passes(self):
        return self.now + 1e-5 + 5e-5 * self.random.random()


def shown(host, now):
    return now + AHEAD[host] + DRIFT[host] * now


@pytest.fixture
def measured(monkeypatch):
    """Return what all ranks find when they compare their clocks at a time."""

    def measure(now):
        world, found = World(now), {}
        own = threading.local()
        monkeypatch.setattr(feature, "time", SimpleNamespace(perf_counter=lambda: shown(own.host, world.now)))

        def play(rank):
            own.host = NODES[rank]
            found[rank] = compare(Comm(rank, world), NODES)

        ranks = [threading.Thread(target=play, args=(rank,)) for rank in range(len(NODES))]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(60)
        return found

    return measure


def test_offsets_and_drifts_are_taken_out_of_times(measured):
    first, last = measured(1000.0), measured(2000.0)
    times = np.linspace(900.0, 2100.0, 25)
    for rank, host in enumerate(NODES):
        comparisons = [first[rank], last[rank]]
        error = max(each.error for each in comparisons)
        assert error < 6e-5
        assert (error > 0) == (host != 0)
        found = aligned(shown(host, times), comparisons)
        # Outside of the two comparisons, a little of the drift's error is added.
        assert np.abs(found - times).max() <= 1.2 * error + 1e-9


def test_one_comparison_takes_out_the_offset():
    times = np.array([5.0, 6.0])
    assert aligned(times, [ClockOffset(5.5, -2.0, 1e-5)]).tolist() == [3.0, 4.0]


def test_a_host_alone_sends_nothing():
    assert compare(SimpleNamespace(rank=1), [0, 0, 0])[1:] == (0.0, 0.0)
