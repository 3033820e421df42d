"""Runs whose workers compute on a stand-in for GPUs, on the ranks of the test's world."""

import json
import sys

import numpy as np
import pytest

import fake_cupy
import mpidl
from mpidl import Digits, Downpour, Sgd
from mpidl.algorithms.hogwild import Hogwild
from mpidl.algorithms.sync import Sync
from mpidl.nn import Dense, Network
from mpidl.nn.ondevice import OnDevice

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")]


@pytest.fixture
def comm():
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    yield MPI.COMM_WORLD
    MPI.COMM_WORLD.Barrier()


@pytest.fixture
def shared_path(comm, tmp_path):
    """Return one directory for all ranks."""
    return comm.bcast(tmp_path)


def network():
    return Network([Dense(16, "relu"), Dense(10)], (8, 8), dtype="float64", seed=4)


def run(path, device, **options):
    model = network()
    options = {"steps": 30, "seed": 7, "batch": 64, "dir": str(path), "name": device} | options
    return model, mpidl.train(model, Digits(), device=device, **options)


@pytest.mark.parametrize("algorithm", [Downpour(), Sync(), Hogwild()])
def test_a_run_on_gpus_is_one_on_cpus(comm, shared_path, monkeypatch, capfd, algorithm):
    first = 2 if algorithm.name == "downpour" else 1  # of the ranks that are workers
    if comm.size == 2 and first == 2:
        return
    workers = max(1, comm.size - first)
    exact = algorithm.name != "hogwild" or workers == 1
    options = {"algorithm": algorithm, "rule": Sgd(0.1), "deterministic": algorithm.name != "hogwild"}
    _, expected = run(shared_path, "cpu", **options)
    cupy = fake_cupy.fake(devices=2)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    used = []
    compute = OnDevice.loss_and_gradient
    monkeypatch.setattr(OnDevice, "loss_and_gradient", lambda *each: (used.append(1), compute(*each))[1])
    capfd.readouterr()
    model, summary = run(shared_path, "cuda", **options)
    comm.Barrier()
    worker = comm.size == 1 or comm.rank >= first
    assert cupy.cuda.used == ([max(0, comm.rank - first) % 2] if worker else [])
    assert comm.allreduce(len(used)) == 30
    assert summary["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-9 if exact else 0.3)
    if worker:
        assert type(model.parameters) is np.ndarray
        assert not np.array_equal(model.parameters, network().parameters)
    if comm.rank == 0:
        events = [json.loads(line) for line in (shared_path / "cuda" / "events.jsonl").read_text().splitlines()]
        places = [(event["place"], event["workers"]) for event in events if event["event"] == "device"]
        one, two = -(-workers // 2), workers // 2
        assert places == ([("Fake 0", one), ("Fake 1", two)] if two else [("Fake 0", one)])
        told = capfd.readouterr().err
        assert (f"computing on Fake 0: {one}, Fake 1: {two}\n" if two else "computing on Fake 0\n") in told


def test_a_gpu_that_is_missing_ends_all_ranks_alike(comm, shared_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake(devices=0))
    with pytest.raises(mpidl.UsageError, match=r"^device.kind: 'cuda', but no GPU that CuPy can use: cudaErrorNo"):
        run(shared_path, "cuda", algorithm=Sync())


def test_models_of_ones_own_compute_where_they_like(comm, shared_path, monkeypatch, least_squares):
    model, split = least_squares()
    data = mpidl.data.Dataset("test", (1,), None, split, split)
    with pytest.raises(mpidl.UsageError, match=r"^device.kind: 'cuda' is for \[\[model.layer\]\]"):
        mpidl.train(model, data, algorithm=Sync(), steps=1, dir=str(shared_path), device="cuda")
