"""The memory and the doorbell of a rank, taken over by another process of its node."""

import time

import numpy as np
import pytest

from mpidl.rma.doorbells import Doorbells
from mpidl.rma.messages import MessageWindow
from mpidl.rma.windows import Window

pytestmark = pytest.mark.mpi(min_size=2)


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


def test_memory_that_is_not_shared_is_not_taken_over(comm):
    for window in (MessageWindow(comm, {}, mixed=False), Window(comm, {"values": (np.int64, 1)}, "create")):
        with window, pytest.raises(ValueError, match="rank 1"):
            window.as_rank(1)


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
