"""How long a rank sleeps."""

import math
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("longest", "slept"), [(math.inf, 0.005), (1.0, 0.005), (0.001, 0.001), (0.0, 0.0), (-1.0, 0.0)]
)
def test_a_pause_is_no_longer_than_asked(longest, slept):
    from mpidl.rma.backoff import Backoff

    found = []
    comm, memory = SimpleNamespace(Iprobe=lambda source, tag: False), SimpleNamespace(serve=lambda: False)
    backoff = Backoff(comm, memory, SimpleNamespace(sleep=found.append, clear=list), 0.005)
    for _ in range(10):
        backoff.pause(longest)
        if found:
            break
    assert found == [slept]


@pytest.mark.parametrize("looks", [0, 1, 7])
def test_a_rank_attends_to_messages_itself_until_it_has_what_it_waits_for(looks):
    from mpidl.rma.backoff import Backoff

    events = []

    @contextmanager
    def attended():
        events.append("attends")
        yield
        events.append("ends")

    comm = SimpleNamespace(Iprobe=lambda source, tag: False)
    memory = SimpleNamespace(serve=lambda: events.append("look"), attended=attended)
    doorbells = SimpleNamespace(sleep=lambda seconds: True, clear=list)
    Backoff(comm, memory, doorbells, 0.005).until(lambda: events.count("look") == looks)
    assert events == ["attends", *["look"] * looks, "ends"]


def test_a_rank_looks_again_before_it_sleeps():
    from mpidl.rma.backoff import LOOKS, Backoff

    events = []
    comm = SimpleNamespace(Iprobe=lambda source, tag: False)
    memory = SimpleNamespace(serve=lambda: events.append("look"))
    doorbells = SimpleNamespace(sleep=lambda seconds: events.append("sleep"), clear=list)
    backoff = Backoff(comm, memory, doorbells, 0.005)
    while "sleep" not in events:
        backoff.pause()
    assert events.count("look") == 1 + LOOKS


@pytest.mark.mpi
def test_a_ring_wakes_a_rank_with_a_thousand_open_files():
    from mpi4py import MPI

    from mpidl.rma.doorbells import Doorbells

    comm = MPI.COMM_WORLD.Dup()
    files = [open(os.devnull) for _ in range(1100)]  # noqa: SIM115
    try:
        bells = Doorbells(comm)
        assert not bells.sleep(0.001)
        bells.ring(comm.rank)
        assert bells.sleep(10.0)
        bells.clear()
        assert not bells.sleep(0.0)
        bells.free()
    finally:
        for file in files:
            file.close()
        comm.Free()
