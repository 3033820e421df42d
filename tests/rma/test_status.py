"""Status rows in the coordinator's window, on real ranks."""

import os

import numpy as np
import pytest

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi(min_size=2)


def make(comm):
    from mpidl.rma.transport import WindowTransport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity

    shards = [Range(number, number + 1) for number in range(comm.size - 1)]
    return WindowTransport(comm, assign([0] * comm.size, 0), Capacity(shards, np.float32, sums=4))


class Torn:
    """A window whose Put arrives number by number in some order, with a look of the coordinator after each."""

    def __init__(self, window, order, look):
        self._window, self._order, self._look = window, order, look

    def __getattr__(self, name):
        return getattr(self._window, name)

    def put(self, values, rank, name, offset=0):
        from mpi4py import MPI

        row = values.view(np.uint8)
        place = self._window.region(rank, name).displacement + offset * row.nbytes
        for start in self._order(range(0, row.nbytes, 8)):
            self._window._window.Put((row[start : start + 8], MPI.BYTE), rank, (place + start, 8, MPI.BYTE))
            self._window.flush(rank)
            self._look()


ORDERS = {
    "forward": iter,
    "backward": reversed,
    "shuffled": lambda starts: np.random.default_rng(3).permutation(starts),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_state_is_never_seen_before_what_it_announces(comm, order):
    from mpidl.transport.protocol import WORKER_STATUS, State

    with make(comm) as transport:
        if comm.rank == 0:
            link, seen = transport.coordinator(), set()
            while comm.recv(source=1):
                link.look()
                row = link.workers[0]
                if row["state"] == State.TRAINED:
                    assert (row["samples"], row["last_push"]) == (100, 7.5)
                if row["tests"]:
                    assert row["tested_samples"] >= 10 * row["tests"]
                    assert (link.sums[0] >= row["tested_samples"] / 4).all()
                if row["state"] == State.DONE:
                    assert row["tested_samples"] == 30
                seen.add((int(row["state"]), int(row["tests"]), int(row["tested_samples"])))
                comm.send(None, 1)
            trained, done = (State.TRAINED, 1), (State.DONE, 1)
            assert {(State.TRAINED, 0, 0), (*trained, 10), (*trained, 20), (*done, 30)} <= seen
        elif comm.rank == 1:
            link = transport.worker(0)
            link._window = Torn(link._window, ORDERS[order], lambda: (comm.send(True, 0), comm.recv(source=0)))
            status = np.zeros(1, WORKER_STATUS)
            status["state"], status["samples"], status["last_push"] = State.TRAINED, 100, 7.5
            link.post(status)
            for samples in 10, 20, 30:
                link.post_sums(np.full((2, 2), samples / 4))
                status["tests"], status["tested_samples"] = 1, samples
                status["state"] = State.DONE if samples == 30 else State.TRAINED
                link.post(status)
            comm.send(False, 0)
        comm.Barrier()


@pytest.mark.usefixtures("one_node")
def test_ranks_with_a_core_each_are_not_crowded(comm):
    before = os.sched_getaffinity(0)
    cores = sorted(set().union(*comm.allgather(before)))[:2]
    if len(cores) == 1:
        pytest.skip("one core is always crowded")
    try:
        os.sched_setaffinity(0, {cores[comm.rank % 2]})
        with make(comm) as apart:
            assert apart.crowded == (comm.size > 2)
        os.sched_setaffinity(0, {cores[0]})
        with make(comm) as together:
            assert together.crowded
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.02), (20, 0.02), (21, 0.021), (1000, 1.0)])
def test_many_workers_post_and_look_more_rarely(comm, monkeypatch, workers, seconds):
    with make(comm) as transport:
        if comm.rank == 1:
            link = transport.worker(0)
            monkeypatch.setattr(transport, "workers", range(workers))
            assert link.interval(0.02) == seconds
