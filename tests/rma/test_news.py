"""Waiting for what servers and the coordinator show, on real ranks."""

import time
from functools import partial

import numpy as np
import pytest

from mpidl.algorithms.coordination import BatchSegment, Evaluate
from mpidl.parameters import shards
from mpidl.transport.coordination import NOTICE, Notice
from mpidl.transport.protocol import ShardClock

COORDINATOR, SERVER = 0, 1
pytestmark = pytest.mark.mpi(min_size=3)


@pytest.fixture
def transport(comm, transport_way):
    """Return a transport with one server."""
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity

    capacity = Capacity(shards(11, 1), np.dtype(np.float64), units=4)
    with Transport(comm, assign([0] * comm.size, servers=1), capacity, way=transport_way) as found:
        yield found
        found.quiesce()


def show(comm, transport, changes):
    """Make changes, each when all workers have said that they were told of the one before.

    Each comes so late that a worker that asked again and again would have asked hundreds of times.
    """
    backoff = transport.backoff()
    for change in changes:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            backoff.pause()
        change()
        for rank in transport.workers:
            while not comm.iprobe(rank):
                backoff.pause()
            comm.recv(source=rank)


def test_who_waits_for_updates_of_all_shards_asks_each_server_once(comm, transport, requests):
    clocks = [1, 3, 4]
    if comm.rank == SERVER:
        link = transport.server(0)
        show(comm, transport, [partial(link.show_clock, clock) for clock in clocks])
    elif comm.rank != COORDINATOR:
        link, backoff = transport.worker(comm.rank - 2), transport.backoff()
        found = np.zeros((1, len(ShardClock)), np.int64)
        for clock in clocks:
            while not link.fetches.all_newer(found):
                backoff.pause()
            link.fetches.start(np.empty(11), found)
            link.fetches.finish()
            assert found[0, ShardClock.CLOCK] == clock
            comm.send(None, SERVER)
        assert not link.fetches.all_newer(found)
    transport.quiesce()
    # To be answered, and to read clock and parameters; to wait without an answer, and to quiesce.
    assert [rank for rank, _ in requests].count(SERVER) <= 3 * len(clocks) + 4


def test_who_waits_for_the_coordinator_is_told_each_time_it_shows_something(comm, transport, requests):
    shown = [(1, 0, 0), (2, 0, 0), (2, 1, 0), (3, 1, 0), (3, 1, 1)]
    if comm.rank == COORDINATOR:
        link = transport.coordinator()
        evaluate = Evaluate((BatchSegment("gradient", 0, 2),))
        one, two, three = (partial(link.evaluation.show, number, evaluate) for number in (1, 2, 3))
        show(comm, transport, [one, two, partial(link.evaluation.show_test, 1), three, link.evaluation.show_over])
    elif comm.rank != SERVER:
        link, backoff = transport.worker(comm.rank - 2), transport.backoff()
        notice = np.zeros(NOTICE, np.int64)
        for each in shown:
            while not link.evaluation.changed():
                backoff.pause()
            link.evaluation.read(notice)
            assert tuple(notice[[Notice.NUMBER, Notice.TEST, Notice.OVER]]) == each
            comm.send(None, COORDINATOR)
        assert not link.evaluation.changed()
    transport.quiesce()
    assert [rank for rank, _ in requests].count(COORDINATOR) <= 2 * len(shown) + 5
