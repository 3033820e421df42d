"""Vectors are encoded between nodes, and travel as they are within one."""

import numpy as np
import pytest
from small_runs import dataset

import mpidl
from mpidl.algorithms import Downpour
from mpidl.rules import Sgd


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("transport", ["windows", "auto"])
def test_only_what_leaves_a_node_is_encoded(comm, shared_path, least_squares, monkeypatch, transport):
    """All but the last rank, a worker, are on one node."""
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", str(comm.size - 1))
    model, split = least_squares()
    algorithm = Downpour(wire="bf16", wire_fetch="bf16")
    debug = {"gradient_seconds": 0.01}  # Both workers have their share.
    summary = mpidl.train(
        model, dataset(split), algorithm=algorithm, rule=Sgd(0.05), epochs=3, batch=8, dir=str(shared_path),
        config={"topology": {"transport": transport}, "debug": debug},
    )  # fmt: skip
    whole, encoded = 13 * 8, 32
    assert encoded * summary["pushes"] < summary["bytes_pushed"] < whole * summary["pushes"]
    assert encoded * summary["fetches"] < summary["bytes_fetched"] < whole * summary["fetches"]


@pytest.mark.mpi(min_size=3)
def test_a_worker_on_its_servers_node_has_the_bits_of_one_that_encodes_nothing(comm, shared_path, least_squares):
    if comm.size > 3:
        pytest.skip("takes 3 ranks")
    found = []
    for algorithm in (Downpour(), Downpour(wire="onebit", wire_fetch="onebit")):
        model, split = least_squares()
        options = {"rule": Sgd(0.05), "epochs": 2, "batch": 8, "dir": str(shared_path)}
        mpidl.train(model, dataset(split), algorithm=algorithm, **options)
        found.append(model.parameters)
    assert np.array_equal(*found)
