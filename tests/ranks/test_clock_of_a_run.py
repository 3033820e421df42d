"""Ranks whose wall clocks are hours apart, and are set during a run, share one clock."""

import time

import pytest
from small_runs import dataset

import mpidl
from mpidl.engines import monotonic

pytestmark = pytest.mark.mpi
HOUR = 3600.0


@pytest.mark.mpi(min_size=2)
def test_ranks_of_other_nodes_take_over_the_clock_of_the_first(comm, monkeypatch):
    real = time.monotonic
    monkeypatch.setattr(monotonic, "monotonic", lambda: real() + HOUR * comm.rank)
    monotonic.agree(comm, near=comm.rank == 0)
    comm.Barrier()
    times = comm.allgather(monotonic.now())
    assert max(times) - min(times) < 5
    monkeypatch.undo()
    monotonic.agree(comm, near=True)


@pytest.mark.parametrize("name", ["downpour", "sync", "averaging"])
@pytest.mark.usefixtures("worker")
def test_durations_of_ranks_with_different_wall_clocks(comm, shared_path, least_squares, monkeypatch, name):
    real, calls = time.time, []

    def wall():
        calls.append(None)
        return real() - HOUR * comm.rank - (HOUR if len(calls) > 1 else 0.0)

    monkeypatch.setattr(time, "time", wall)
    model, split = least_squares()
    began = time.perf_counter()
    summary = mpidl.train(
        model, dataset(split), config={"algorithm": {"name": name}},
        batch=8, epochs=4, dir=shared_path,
    )  # fmt: skip
    assert 0 < summary["seconds"] < time.perf_counter() - began
