"""Owners free MPI objects once; the memory and the doorbell of a rank are taken over by another process of its node."""

import time

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.messages import MessageWindow
from mpidl.rma.windows import Window

pytestmark = pytest.mark.mpi


def test_a_freed_window_raises(comm):
    from mpidl.rma.counters import Counter
    from mpidl.rma.windows import Window

    with Window(comm, {"values": (np.int64, 3)}) as window:
        counter = Counter(window, 0, "values")
        counter.read()
        comm.Barrier()
    values = np.zeros(3, np.int64)
    for use in (
        lambda: window.to(0).put(values, 0, "values"),
        lambda: window.to(0).get(values, 0, "values"),
        lambda: window.to(0).flush(0),
        lambda: window.local("values"),
        window.sync,
        window.free,
        counter.read,
    ):
        with pytest.raises(RuntimeError, match="the window has been freed"):
            use()


def test_freed_memory_and_doorbells_raise(comm):
    from mpidl.rma.doorbells import Doorbells
    from mpidl.rma.nodes import neighbours
    from mpidl.rma.shared_state import SharedVectors

    node = neighbours(comm)
    with SharedVectors(node, 1, 4, np.float32) as shared:
        comm.Barrier()
    node.Free()
    with pytest.raises(RuntimeError, match="the shared memory has been freed"):
        shared.vectors[0]
    with Doorbells(comm) as doorbells:
        comm.Barrier()
    with pytest.raises(RuntimeError, match="the doorbell has been freed"):
        doorbells.clear()


def test_a_freed_transport_raises(comm):
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import Roles
    from mpidl.transport.capacity import Capacity

    roles = Roles((), tuple((rank,) for rank in range(comm.size)))
    shards = [Range(rank, rank + 1) for rank in range(comm.size)]
    with Transport(comm, roles, Capacity(shards, np.float32)) as transport:
        link = transport.worker(comm.rank)
        coordinator = transport.coordinator() if comm.rank == 0 else None
        comm.Barrier()
    with pytest.raises(RuntimeError, match="freed"):
        transport.backoff().pause()
    with pytest.raises(RuntimeError, match="freed"):
        link.clocks.show(1)
    if coordinator is not None:
        with pytest.raises(RuntimeError, match="freed"):
            coordinator.posted.look()


@pytest.mark.usefixtures("one_node")
@pytest.mark.mpi(min_size=2)
def test_another_process_continues_in_the_memory_of_a_rank(comm):
    victim, taker = comm.size - 1, 0
    with Window(comm, {"values": (np.int64, 5), "own": (np.uint8, 3 + comm.rank)}) as window:
        window.local("values")[:] = comm.rank
        window.quiesce()
        if comm.rank == taker:
            taken = window.as_rank(victim)
            assert taken.local("values").tolist() == [victim] * 5
            assert len(taken.local("own")) == 3 + victim
            taken.local("values")[1] = 70
            taken.sync()
        window.quiesce()
        found = np.zeros(5, np.int64)
        window.to(victim).put(np.full(1, 71), victim, "values", 2)
        window.to(victim).get(found, victim, "values")
        window.to(victim).flush(victim)
        assert found.tolist() == [victim, 70, 71, victim, victim]
        assert window.local("values")[0] == comm.rank


@pytest.mark.mpi(min_size=2)
def test_memory_that_is_not_shared_is_not_taken_over(comm):
    for window in (MessageWindow(comm, {}, mixed=False), Window(comm, {"values": (np.int64, 1)}, "create")):
        with window, pytest.raises(ValueError, match="rank 1"):
            window.as_rank(1)


@pytest.mark.usefixtures("one_node")
@pytest.mark.mpi(min_size=2)
def test_a_rank_that_is_taken_over_is_rung_at_its_new_process(comm):
    doorbells = Doorbells(comm)
    victim, taker = comm.size - 1, 0
    if comm.rank == taker:
        taken = doorbells.as_rank(victim)
    comm.Barrier()
    if comm.rank == comm.size - 2:
        doorbells.ring(victim)
    comm.Barrier()
    if comm.rank == taker:
        started = time.perf_counter()
        assert taken.sleep(200.0)
        assert time.perf_counter() - started < 60.0
        assert not doorbells.sleep(0.0)
        taken.free()
    comm.Barrier()
    doorbells.free()
