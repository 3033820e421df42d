"""Clocks on real ranks, under random slowdowns."""

import time

import numpy as np
import pytest

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("bound", [0, 2])
def test_no_clock_is_more_than_the_bound_ahead(comm, bound):
    from mpidl.rma.clocks import STOPPED, Clocks
    from mpidl.rma.windows import Window

    window = Window(comm, {"clocks": (np.int64, comm.size)} if comm.rank == 0 else {})
    clocks = Clocks(window, 0, "clocks", comm.rank, comm.size)
    random = np.random.default_rng(comm.rank)
    everybody = np.zeros(comm.size, np.int64)
    steps = 40 + 7 * comm.rank
    for step in range(steps):
        assert clocks.own == step
        if random.random() < 0.2:
            time.sleep(0.002 * (comm.rank + 1))
        clocks.advance()
        while clocks.slowest() < clocks.own - bound:
            time.sleep(1e-4)
        window.get(everybody, 0, "clocks")
        window.flush(0)
        running = everybody[everybody != STOPPED]
        assert running.max() - running.min() <= bound + 1
    clocks.stop()
    comm.Barrier()
    assert clocks.slowest() == STOPPED
    comm.Barrier()
    window.free()
