"""Requests of other ranks: answers that wait for counters, against a model, and how many are carried out at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.rma.requests import Later

RANKS, COUNTERS = [3, 5, 6, 8, 11], 3
asking = st.tuples(st.sampled_from(RANKS), st.integers(0, COUNTERS - 1), st.integers(0, 4))
raising = st.tuples(st.integers(0, COUNTERS - 1), st.integers(0, 3))


@given(st.lists(asking | raising, min_size=30, max_size=90))
def test_an_answer_leaves_when_its_counter_and_those_before_it_are_large_enough(steps):
    memory = np.zeros(8 * COUNTERS + 3, np.uint8)
    counters, later = memory[: 8 * COUNTERS].view(np.int64), Later(memory, RANKS)
    waiting = {rank: [] for rank in RANKS}
    for number, step in enumerate(steps):
        if len(step) == 3:
            rank, counter, least = step
            later.add(rank, 8 * counter, least, number)
            waiting[rank].append((counter, least, number))
        else:
            counter, by = step
            counters[counter] += by
        if number % 3:
            continue
        found = {rank: [] for rank in RANKS}
        for rank, values in later.take():
            found[rank].append(values)
        for rank, queue in waiting.items():
            expected = []
            while queue and counters[queue[0][0]] >= queue[0][1]:
                expected.append(queue.pop(0)[2])
            assert found[rank] == expected


@pytest.mark.mpi(min_size=2)
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
