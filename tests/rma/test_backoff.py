"""How long a rank sleeps, and how threads of a process take turns."""

import math
import os
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from mpidl.rma.backoff import Turn


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


@pytest.fixture
def played():
    """Start threads that take turns; yield the function that starts one, and what they did in order."""
    turn, did, threads = Turn(), [], []

    def play(name, work):
        def run():
            turn.take()
            for _ in work():
                did.append(name)
            turn.leave()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    yield turn, did, play
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_others_wait_while_one_has_the_turn_and_come_in_order(played):
    turn, did, play = played
    for name in "abc":
        play(name, lambda: range(1))
        time.sleep(0.02)
    assert did == []
    turn.pass_on()
    assert did == ["a", "b", "c"]
    turn.leave()


def test_only_one_thread_works_at_a_time(played):
    turn, did, play = played
    inside = []

    def work():
        for _ in range(200):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0)
            inside.pop()
            yield
            turn.pass_on()

    for name in range(4):
        play(name, work)
    with turn.left():
        time.sleep(0.1)
    while len(did) < 800:
        turn.pass_on()
    assert sorted(did) == sorted([name for name in range(4) for _ in range(200)])
    turn.leave()


def test_who_leaves_the_turn_to_wait_does_not_keep_others_from_it(played):
    turn, did, play = played
    answered = threading.Event()

    def work():
        answered.set()
        yield

    play("answers", work)
    with turn.left():
        assert answered.wait(60)
    turn.leave()
    assert did == ["answers"]
