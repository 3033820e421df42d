"""Muon on ranks: one worker trains as in one process, with any number of servers; several make a step for each push."""

import numpy as np
import pytest
from mpi4py import MPI

import mpidl
from mpidl.rules import Muon

pytestmark = pytest.mark.mpi(min_size=3)
KEYWORDS = {"batch": 32, "steps": 30, "seed": 5}


def network():
    return mpidl.Network([mpidl.nn.Dense(24, "relu"), mpidl.nn.Dense(16, "relu"), mpidl.nn.Dense(10)], (8, 8))


@pytest.mark.parametrize("transport", ["windows", "messages"])
def test_one_worker_trains_as_in_one_process(comm, shared_path, transport):
    model, alone = network(), network()
    summary = mpidl.train(
        model, mpidl.Digits(), rule=Muon(0.02), servers=comm.size - 2, dir=shared_path,
        config={"topology": {"transport": transport}}, **KEYWORDS,
    )  # fmt: skip
    assert (summary["servers"], summary["replicas"]) == (comm.size - 2, 1)
    mpidl.train(
        alone, mpidl.Digits(), rule=Muon(0.02), dir=shared_path, name=f"alone-{comm.rank}", comm=MPI.COMM_SELF,
        **KEYWORDS,
    )  # fmt: skip
    assert np.array_equal(model.parameters, alone.parameters)


#: Algorithms with Muon as the rule of the replicas' own steps.
INNER = {
    "diloco": {"window": 5},
    "averaging": {"tau": 5},
    "fedprox": {},
    "easgd": {"tau": 3},
}


@pytest.mark.parametrize("algorithm", ["downpour", "softsync", "sync", *INNER])
def test_several_workers(comm, shared_path, algorithm):
    model = network()
    keywords = {"algorithm": "downpour", "rule": Muon(0.02)}
    if algorithm in INNER:
        keywords = {"algorithm": {"name": algorithm, "inner": "muon", "rate": 0.02, **INNER[algorithm]}}
    else:
        keywords["algorithm"] = algorithm
    summary = mpidl.train(model, mpidl.Digits(), dir=shared_path, batch=32, epochs=4, seed=5, **keywords)
    assert summary["test_accuracy"] > 0.8
