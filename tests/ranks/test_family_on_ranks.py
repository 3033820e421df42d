"""The asynchronous family on real ranks: what must hold whatever the timing."""

import time

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import ALGORITHMS, Agn, Dcasgd, Diloco, Softsync, Ssp
from mpidl.data import Dataset
from mpidl.rules import Sgd

pytestmark = pytest.mark.mpi(min_size=3)
SAMPLES = 101


@pytest.fixture
def comm():
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    yield MPI.COMM_WORLD
    MPI.COMM_WORLD.Barrier()


def run(comm, problem, algorithm, tmp_path, **options):
    model, split = problem
    dataset = Dataset("test", (1,), None, split, split)
    options = {"epochs": 3, "batch": 4, "dir": str(comm.bcast(tmp_path)), "rule": Sgd(1.0)} | options
    return mpidl.train(model, dataset, algorithm=algorithm, **options)


@pytest.mark.parametrize(
    ("algorithm", "gathered"),
    [(Agn(rate=1.0, window=1), 1), (Ssp(0), 1), (Ssp(2), 1), (Dcasgd(0.0), 1), (Softsync(1, modulate=False), None)],
)
def test_no_update_is_lost(comm, tmp_path, tally, algorithm, gathered):
    model, split = tally()
    summary = run(comm, (model, split), algorithm, tmp_path)
    assert summary["samples"] == 3 * SAMPLES
    if comm.rank > 1:
        workers = comm.size - 2
        assert np.array_equal(model.parameters, -model.total(SAMPLES, 3) / (gathered or workers))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_trains(comm, tmp_path, least_squares, name):
    model, split = least_squares()
    before = model.loss_and_gradient(split.gather(np.arange(SAMPLES)))[0]
    algorithm = Diloco(rate=0.02, window=4) if name == "diloco" else ALGORITHMS[name]()
    rule = algorithm.default_rule if name == "diloco" else Sgd(0.05)
    summary = run(comm, (model, split), algorithm, tmp_path, rule=rule, epochs=20)
    assert summary["algorithm"] == ALGORITHMS[name].name
    assert summary["test_loss"] < 0.6 * before


@pytest.mark.parametrize("n", [1, 2])
def test_mean_staleness_of_softsync_is_workers_less_one_over_c(comm, tmp_path, tally, n):
    model, split = tally()
    compute, random = model.loss_and_gradient, np.random.default_rng(comm.rank)

    def slow(batch):
        # Long beside a push and a fetch, and different each time, so that few pushes fall between another's two.
        time.sleep(random.exponential(0.01))
        return compute(batch)

    model.loss_and_gradient = slow
    summary = run(comm, (model, split), Softsync(n), tmp_path, epochs=6)
    workers = comm.size - 2
    expected = (workers - 1) / max(1, workers // n)
    assert summary["staleness"]["mean"] == pytest.approx(expected, abs=0.15)
