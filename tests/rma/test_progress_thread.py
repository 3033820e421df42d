"""The thread by which messages go on while a rank computes."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from mpidl.rma.sends import ProgressThread

pytestmark = [
    pytest.mark.mpi(min_size=3),
    pytest.mark.skipif(MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="there is no thread"),
]
COUNT = 1 << 20


@pytest.fixture
def steps(monkeypatch):
    """Return the steps of the threads that are made from now on."""
    found, make = [], ProgressThread.__init__
    monkeypatch.setattr(ProgressThread, "__init__", lambda self, step: (found.append(step), make(self, step))[1])
    return found


@pytest.fixture
def window(comm, monkeypatch):
    """Messages, in pieces, to the first two ranks, which offer memory and have no thread."""
    from mpidl.rma.messages import MessageWindow

    monkeypatch.setattr("mpidl.rma.messages.piece_between", lambda *arguments: 1 << 16)
    with MessageWindow(comm, {"values": (np.float64, COUNT)} if comm.rank < 2 else {}, mixed=False) as opened:
        yield opened


def wait_for(path, serve=lambda: None):
    """Wait until there is a file, and meanwhile serve."""
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"no {path.name}"
        serve()
        time.sleep(1e-4)


def test_long_values_leave_while_a_rank_computes_though_it_has_waited_for_another(comm, window, tmp_path):
    """While it waits, the rank itself calls MPI; then its thread does."""
    waited, arrived = (comm.bcast(tmp_path) / name for name in ("waited", "arrived"))
    comm.Barrier()
    if comm.rank == 2:
        window.to(0).put(np.ones(COUNT), 0, "values")
        window.to(1).get(np.empty(1), 1, "values")
        window.to(1).flush(1)
        waited.touch()
        wait_for(arrived)  # Without a call to MPI.
    elif comm.rank == 1:
        time.sleep(0.1)  # So that it does wait.
        wait_for(waited, window.serve)
    elif comm.rank == 0:
        wait_for(waited)
        values, until = window.local("values"), time.monotonic() + 60
        while not values.all():
            assert time.monotonic() < until, "the values don't arrive"
            window.serve()
        arrived.touch()
    window.quiesce()


def test_nobody_wakes_the_thread_where_nothing_is_left_to_do(comm, window, monkeypatch):
    if comm.rank == 2:
        woken = []
        monkeypatch.setattr(ProgressThread, "wake", lambda self: woken.append(None))
        value = np.zeros(1, np.int64)
        for rank in (0, 1, 0):
            window.to(rank).put(np.ones(1), rank, "values")
            window.to(rank).fetch_and_op(np.ones(1, np.int64), value, rank, "values", 1, MPI.SUM)
            window.to(rank).flush(rank)
            window.to(rank).get(np.empty(8), rank, "values")
            window.to(rank).flush(rank)
        assert not woken
        monkeypatch.undo()
    window.quiesce()


def test_the_thread_rests_as_long_as_its_rank_attends_to_messages_itself(comm, steps, window, monkeypatch):
    if comm.rank == 2:
        woken = []
        monkeypatch.setattr(ProgressThread, "wake", lambda self: woken.append(None))
        with window.attended():
            window.to(0).put(np.ones(COUNT), 0, "values")
            with window.attended():
                window.to(0).put(np.ones(COUNT), 0, "values")
            assert not woken
            assert not steps[0](), "the thread ends its steps"
        assert bool(woken) == steps[0](), "some MPIs have sent all"
        monkeypatch.undo()
        with window.attended():
            pass  # The thread is woken behind it.
    window.quiesce()
    if comm.rank == 0:
        assert window.local("values").all()
