"""``wire = "auto"``: what ranks choose when a run begins."""

import re

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Downpour
from mpidl.data import Dataset
from mpidl.errors import UsageError
from mpidl.rules import Sgd
from mpidl.topology.roles import Relay, Roles


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [(0.0, 0), (1.0, 0), (1.1, 1), (1.8, 1), (1.9, 2), (3.5, 2), (3.7, 3), (1e9, 3)],
)
def test_the_first_pair_is_chosen_with_which_an_exchange_is_short_else_the_fastest(exchange, expected):
    from mpidl.runs.wire_choice import FORMATS, choose

    assert choose(exchange, 1.0, [0.0, 0.08, 0.1, 0.1], np.float32) == FORMATS[expected]


def test_a_format_that_takes_longer_to_encode_than_it_saves_is_not_chosen():
    from mpidl.runs.wire_choice import FORMATS, choose

    assert choose(3.0, 1.0, [0.0, 9.0, 9.0, 9.0], np.float32) == FORMATS[0]
    assert choose(3.0, 1.0, [0.0, 0.2, 9.0, 9.0], np.float32) == FORMATS[1]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(("share", "nodes", "expected"), [(0.0, 2, None), (1e12, 2, "fp32"), (0.0, 1, "fp32")])
def test_all_ranks_choose_the_same_and_the_run_keeps_it(
    comm, shared_path, least_squares, monkeypatch, share, nodes, expected
):
    from mpidl.runs import ranks, wire_choice

    monkeypatch.setattr(wire_choice, "SHARE", share)
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    monkeypatch.setattr(ranks, "_nodes", lambda comm: [rank * nodes // comm.size for rank in range(comm.size)])
    model, split = least_squares()
    dataset = Dataset("test", (1,), None, split, split)
    algorithm = Downpour(wire="auto", wire_fetch="auto")
    summary = mpidl.train(model, dataset, algorithm=algorithm, rule=Sgd(0.05), epochs=2, batch=8, dir=str(shared_path))
    (directory,) = shared_path.iterdir()
    resolved = (directory / "config.toml").read_text()
    pair = tuple(re.search(f'^{key} = "(.*)"$', resolved, re.MULTILINE)[1] for key in ("wire", "wire_fetch"))
    assert pair in wire_choice.FORMATS
    assert expected in (None, pair[0])
    assert "wire_within_nodes = false" in resolved
    pushed = {"fp32": 13 * 8, "bf16": 32, "int8": 24, "onebit": 24}[pair[0]]
    assert summary["bytes_pushed"] == pushed * summary["pushes"]


@pytest.mark.mpi(min_size=4)
def test_a_relay_measures_and_encodes_in_the_place_of_its_worker(comm, shared_path, least_squares, monkeypatch):
    if comm.size > 4:
        pytest.skip("takes 4 ranks")
    from mpidl.runs import ranks, wire_choice

    roles = Roles((1,), ((3,),), relays=(Relay(2, (3,)),))
    assert wire_choice._fetchers(roles) == [2]
    monkeypatch.setattr(wire_choice, "SHARE", 0.0)
    monkeypatch.setattr(wire_choice, "FORMATS", wire_choice.FORMATS[2:3])
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    monkeypatch.setattr(ranks, "assign", lambda *arguments, **options: roles)
    model, split = least_squares()
    dataset, algorithm = Dataset("test", (1,), None, split, split), Downpour(wire="auto", wire_fetch="auto")
    summary = mpidl.train(
        model, dataset, algorithm=algorithm, rule=Sgd(0.05), epochs=2, batch=8, dir=str(shared_path),
        config={"topology": {"relay": True}},
    )  # fmt: skip
    assert summary["bytes_pushed"] == 24 * summary["pushes"]
    assert summary["bytes_fetched"] == 13 * 8 + 24 * (summary["fetches"] - 1)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("transport", ["windows", "auto"])
def test_only_what_leaves_a_node_is_encoded(comm, shared_path, least_squares, monkeypatch, transport):
    """All but the last rank, a worker, are on one node."""
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", str(comm.size - 1))
    model, split = least_squares()
    dataset = Dataset("test", (1,), None, split, split)
    algorithm = Downpour(wire="bf16", wire_fetch="bf16", wire_within_nodes=False)
    debug = {"gradient_seconds": 0.01}  # Both workers have their share.
    summary = mpidl.train(
        model, dataset, algorithm=algorithm, rule=Sgd(0.05), epochs=3, batch=8, dir=str(shared_path),
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
    for algorithm in (Downpour(), Downpour(wire="onebit", wire_fetch="onebit", wire_within_nodes=False)):
        model, split = least_squares()
        dataset = Dataset("test", (1,), None, split, split)
        options = {"rule": Sgd(0.05), "epochs": 2, "batch": 8, "dir": str(shared_path)}
        mpidl.train(model, dataset, algorithm=algorithm, **options)
        found.append(model.parameters)
    assert np.array_equal(*found)


def test_one_process_has_nothing_to_encode(shared_path, least_squares):
    model, split = least_squares()
    dataset = Dataset("test", (1,), None, split, split)
    twin, _ = least_squares()
    options = {"rule": Sgd(0.05), "epochs": 2, "batch": 8, "dir": str(shared_path)}
    mpidl.train(model, dataset, algorithm=Downpour(wire="auto", wire_fetch="auto"), **options)
    mpidl.train(twin, dataset, algorithm=Downpour(), **options)
    assert np.array_equal(model.parameters, twin.parameters)


@pytest.mark.parametrize("key", ["wire", "wire_fetch"])
def test_what_timing_chooses_is_not_deterministic(shared_path, least_squares, key):
    model, split = least_squares()
    dataset = Dataset("test", (1,), None, split, split)
    with pytest.raises(UsageError, match=f"^algorithm.{key}: 'auto' is chosen by timing"):
        mpidl.train(model, dataset, algorithm=Downpour(**{key: "auto"}), deterministic=True, dir=str(shared_path))
