"""Whole runs whose pushes, fetches and counters are messages: between all ranks, or between nodes of two ranks."""

import numpy as np
import pytest
from serial import serial_sgd

import mpidl
from mpidl.algorithms import Dcasgd, Diloco, Downpour, Easgd, Softsync, Ssp, Sync
from mpidl.data import Dataset
from mpidl.rules import Adam, Sgd

pytestmark = pytest.mark.mpi(min_size=3)
#: Parameters of a shard so large that they travel in messages of their own, of several chunks.
LARGE = 40_009


@pytest.fixture(params=["messages", "auto"])
def transport(request, monkeypatch):
    """Return messages everywhere, or what several nodes of two ranks each have: windows and messages mixed."""
    if request.param != "messages":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    return request.param


def run(problem, transport, path, **options):
    model, split = problem
    options = {"epochs": 2, "batch": 8, "seed": 7, "dir": str(path), "rule": Sgd(1.0)} | options
    config = {"topology": {"transport": transport}}
    return mpidl.train(model, Dataset("test", (1,), None, split, split), config=config, **options)


@pytest.mark.parametrize("servers", [1, 2])
def test_one_worker_is_serial_sgd_bit_for_bit(comm, shared_path, least_squares, transport, servers):
    if comm.size != 2 + servers:
        pytest.skip("takes one worker")
    model, split = least_squares()
    summary = run((model, split), transport, shared_path, servers=servers, rule=Sgd(0.05))
    assert summary["staleness"]["max"] == 0
    assert np.array_equal(model.parameters, serial_sgd(least_squares(), 0.05))


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [
        (Downpour(), LARGE),
        (Downpour(4, 3), 13),
        (Downpour(2, 2, "literal", overlap=True), LARGE),
        (Ssp(1), 13),
        (Dcasgd(0.0), LARGE),
    ],
)
def test_no_update_is_lost(comm, shared_path, tally, transport, algorithm, size):
    model, split = tally(size)
    servers = 1 if comm.size == 3 else 2
    summary = run((model, split), transport, shared_path, algorithm=algorithm, servers=servers)
    assert summary["samples"] == 2 * 101
    assert np.array_equal(model.parameters, -model.total(101, 2))


@pytest.mark.parametrize("algorithm", [Easgd(rate=0.01), Softsync(1), Diloco(), Sync()])
def test_deterministic_runs_are_those_of_windows(comm, shared_path, least_squares, transport, algorithm):
    found = []
    for each in ("windows", transport):
        model, split = least_squares()
        options = {"rule": Adam(0.01)} if isinstance(algorithm, Softsync | Sync) else {"rule": None}
        run((model, split), each, shared_path, algorithm=algorithm, deterministic=True, **options)
        found.append(model.parameters)
    assert np.array_equal(*found)


def test_a_rank_that_fails_ends_a_run_of_messages_before_it_begins(comm, shared_path, least_squares, transport):
    """All raise the same line, and another run can follow."""
    model, split = least_squares()
    with pytest.raises(mpidl.UsageError, match="servers"):
        run((model, split), transport, shared_path, servers=comm.size)
    summary = run((model, split), transport, shared_path, rule=Sgd(0.05))
    assert summary["samples"] == 202
