"""How a rank carries out what others ask of its memory."""

import numpy as np
import pytest

pytestmark = pytest.mark.mpi(min_size=2)


def test_a_rank_that_others_ask_all_the_time_looks_around_now_and_then(comm):
    """Else a coordinator whom workers ask faster than it answers would never report, save or stop."""
    from mpidl.rma.messages import MessageWindow
    from mpidl.rma.requests import MOST

    asked, most = 20 * MOST, 0
    with MessageWindow(comm, {"taken": (np.int64, comm.size)} if comm.rank == 0 else {}, mixed=False) as window:
        if comm.rank:
            for number in range(1, asked + 1):
                window.to(0).put(np.array([number]), 0, "taken", comm.rank)
        comm.Barrier()
        if comm.rank == 0:
            taken, before = window.local("taken"), 0
            while before < asked * (comm.size - 1):
                window.serve()
                now = int(taken.sum())
                most, before = max(most, now - before), now
        window.quiesce()
    assert most < MOST + comm.size
