"""``wire = "auto"``: what ranks choose when a run begins."""

import re

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Downpour
from mpidl.data import Dataset
from mpidl.errors import UsageError
from mpidl.rules import Sgd


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, "fp32"), (0.25, "fp32"), (0.26, "bf16"), (0.5, "bf16"), (0.51, "int8"), (0.99, "int8"), (1.1, "topk:0.01"),
     (1e9, "topk:0.01")],
)  # fmt: skip
def test_the_first_format_is_chosen_with_which_an_exchange_is_short(ratio, expected):
    from mpidl.runs.wire_choice import choose

    assert choose(ratio, np.float32) == (expected, "topk:0.05" if expected == "topk:0.01" else expected)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(("share", "nodes", "expected"), [(0.0, 2, "topk:0.01"), (1e12, 2, "fp32"), (0.0, 1, "fp32")])
def test_all_ranks_choose_the_same_and_the_run_keeps_it(
    comm, shared_path, least_squares, monkeypatch, share, nodes, expected
):
    from mpidl.runs import ranks, wire_choice

    monkeypatch.setattr(wire_choice, "SHARE", share)
    monkeypatch.setattr(ranks, "_nodes", lambda comm: [rank * nodes // comm.size for rank in range(comm.size)])
    model, split = least_squares()
    dataset = Dataset("test", (1,), None, split, split)
    algorithm = Downpour(wire="auto", wire_fetch="auto")
    summary = mpidl.train(model, dataset, algorithm=algorithm, rule=Sgd(0.05), epochs=2, batch=8, dir=str(shared_path))
    pushed = {"topk:0.01": 12 + 4, "fp32": 13 * 8}[expected]
    assert summary["bytes_pushed"] == pushed * summary["pushes"]
    if comm.rank == 0:
        (directory,) = shared_path.iterdir()
        fetched = "topk:0.05" if expected == "topk:0.01" else expected
        resolved = (directory / "config.toml").read_text()
        assert re.search(f'^wire = "{expected}"$', resolved, re.MULTILINE)
        assert re.search(f'^wire_fetch = "{fetched}"$', resolved, re.MULTILINE)


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
