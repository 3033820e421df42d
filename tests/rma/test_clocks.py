"""The replicas' clocks, under random slowdowns, and tickets for portions, asked for before they are needed or not."""

import time

import numpy as np
import pytest
from ways import transport_of_workers

pytestmark = pytest.mark.mpi(min_size=2)


def clocks(transport):
    """Read the clocks of all replicas."""
    found, coordinator = np.zeros(len(transport.roles.replicas), np.int64), transport.roles.coordinator
    window = transport.window.to(coordinator)
    window.get(found, coordinator, "clocks")
    window.flush(coordinator)
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
    with transport_of_workers(comm, "mixed") as transport:
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
    with transport_of_workers(comm, "mixed") as transport:
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
    with transport_of_workers(comm) as transport:
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


def travels(transport, rank):
    """Return whether a rank's tickets are messages."""
    coordinator = transport.roles.coordinator
    return transport.window.to(coordinator).supports_deferred_get and rank != coordinator


def test_each_ticket_is_taken_once(comm, transport):
    taken = []
    if comm.rank > 0:
        link, random = transport.worker(comm.rank - 1), np.random.default_rng(comm.rank)
        for _ in range(100):
            if random.random() < 0.5:
                assert link.tickets.ask() == travels(transport, comm.rank)
                time.sleep(random.exponential(1e-4))
                link.orders.read()
                link.tickets.taken()
            taken.append(link.tickets.take())
        assert taken == sorted(taken)
    transport.quiesce()
    everywhere = [ticket for each in comm.allgather(taken) for ticket in each]
    assert sorted(everywhere) == list(range(100 * (comm.size - 1)))


def test_asking_waits_for_nothing(comm, transport):
    """The coordinator answers no messages until all have asked."""
    if comm.rank == 0:
        for rank in range(1, comm.size):
            comm.recv(source=rank)
    else:
        link = transport.worker(comm.rank - 1)
        asked = link.tickets.ask()
        comm.send(None, 0)
    transport.quiesce()
    if comm.rank > 0 and asked:
        # The answer has already arrived: the coordinator serves no messages here.
        assert 0 <= link.tickets.take() < comm.size - 1
    comm.Barrier()
