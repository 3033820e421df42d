"""Tickets for portions, asked for before they are needed or not: each is taken once."""

import time

import numpy as np
import pytest

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(params=["windows", "messages", "mixed"])
def transport(request, comm, monkeypatch):
    """A transport whose first rank coordinates, and the others work; with "mixed", on nodes of two ranks."""
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity

    if request.param == "mixed":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    shards = [Range(number, number + 1) for number in range(comm.size - 1)]
    with Transport(comm, assign([0] * comm.size, 0), Capacity(shards, np.float32), way=request.param) as opened:
        yield opened


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
        # It is here already: nobody answers now either.
        assert 0 <= link.tickets.take() < comm.size - 1
    comm.Barrier()
