"""The replicas' clocks on real ranks, under random slowdowns."""

import time

import numpy as np
import pytest

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi(min_size=2)


def opened(comm, way="windows"):
    """Return a transport whose first rank coordinates, and the others work."""
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity

    shards = [Range(number, number + 1) for number in range(comm.size - 1)]
    return Transport(comm, assign([0] * comm.size, 0), Capacity(shards, np.float32), way=way)


@pytest.fixture(params=["windows", "messages", "mixed"])
def transport(request, comm, monkeypatch):
    if request.param == "mixed":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    with opened(comm, request.param) as transport:
        yield transport


def clocks(transport):
    """Read the clocks of all replicas."""
    found = np.zeros(len(transport.roles.replicas), np.int64)
    transport.window.to(transport.roles.coordinator).get(found, transport.roles.coordinator, "clocks")
    transport.window.to(transport.roles.coordinator).flush(transport.roles.coordinator)
    return found


@pytest.mark.parametrize("bound", [0, 2])
def test_no_clock_is_more_than_the_bound_ahead(comm, transport, bound):
    from mpidl.transport.protocol import STOPPED

    if comm.rank > 0:
        link, backoff = transport.worker(comm.rank - 1), transport.backoff()
        random = np.random.default_rng(comm.rank)
        link.clocks.show(0)
        transport.peers.Barrier()
        for clock in range(1, 41 + 7 * comm.rank):
            if random.random() < 0.2:
                time.sleep(0.002 * (comm.rank + 1))
            link.clocks.show(clock)
            while not link.clocks.all_reached(clock - bound):
                backoff.pause()
            assert clocks(transport).min() >= clock - bound
        link.clocks.show(STOPPED)
        while not link.clocks.all_reached(STOPPED):
            backoff.pause()
        assert (clocks(transport) == STOPPED).all()
    transport.quiesce()


def test_who_waits_for_clocks_at_another_node_does_not_ask_again_and_again(comm, monkeypatch, requests):
    """It asks for all clocks, and to be told when the slowest has moved, however long that takes."""
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    with opened(comm, "mixed") as transport:
        if comm.rank > 0:
            link, backoff = transport.worker(comm.rank - 1), transport.backoff()
            transport.peers.Barrier()
            if comm.rank == 1:
                time.sleep(0.1)
            link.clocks.show(1)
            while not link.clocks.all_reached(1):
                backoff.pause()
            transport.peers.Barrier()
        transport.quiesce()
    # To set a clock, to read all, for each replica that is the slowest one more and another reading, and to quiesce.
    assert len(requests) <= 4 + 2 * (comm.size - 1)
    assert requests or comm.rank == 0


def test_clocks_that_were_seen_to_be_far_enough_are_not_read_again(comm, monkeypatch, requests):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    with opened(comm, "mixed") as transport:
        if comm.rank > 0:
            link, backoff = transport.worker(comm.rank - 1), transport.backoff()
            link.clocks.show(10)
            while not link.clocks.all_reached(10):
                backoff.pause()
            requests.clear()
            assert all(link.clocks.all_reached(clock) for clock in range(-3, 11))
            assert not requests
            assert not link.clocks.all_reached(11)
            assert requests
        transport.quiesce()


@pytest.mark.usefixtures("one_node")
def test_the_slowest_replica_wakes_those_that_wait_for_it(comm):
    with opened(comm) as transport:
        if comm.rank > 0:
            link = transport.worker(comm.rank - 1)
            backoff, slept = link.backoff(5.0), 0
            for clock in range(1, 4):
                if comm.rank == 1:
                    time.sleep(0.05)
                link.clocks.show(clock)
                while not link.clocks.all_reached(clock):
                    slept += backoff.pause()
            assert slept == 0
        comm.Barrier()
