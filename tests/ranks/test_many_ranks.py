"""More ranks than the suite's worlds have: each test starts jobs of its own, of real networks on real data."""

import json

import h5py
import numpy as np
import pytest
from mpi4py import MPI

from mpidl.parameters import Range
from mpidl.relays.residuals import saved_residuals
from mpidl.storage.checkpoint import Checkpoint
from mpidl.version import VERSION
from mpidl.wire import encoded_bytes, parse

LAYERS = [("dense", 33, "relu"), ("dense", 10, "identity")]


@pytest.fixture
def digits(tmp_path):
    """A job on the embedded digits: its configuration's path."""
    path = tmp_path / "digits.toml"
    layers = "".join(f'[[model.layer]]\ntype = "{t}"\nunits = {u}\nactivation = "{a}"\n' for t, u, a in LAYERS)
    path.write_text(f'[run]\nepochs = 2\n[data]\nsource = "digits"\nbatch = 32\n{layers}')
    return path


def trained(directory, name):
    """Return every vector of a run's last checkpoint, by name."""
    checkpoints = directory / "runs" / name / "checkpoints"
    newest = max(checkpoints.iterdir(), key=lambda path: int(path.name))
    datasets = {}
    with h5py.File(newest / "index.h5") as index:
        index.visititems(lambda key, item: datasets.update({key: item[...]} if isinstance(item, h5py.Dataset) else {}))
        del datasets["layout"]
    return datasets


ENCODED = ("--set", "algorithm.wire=onebit", "--set", "algorithm.wire_fetch=topk:0.1")


@pytest.mark.long
@pytest.mark.parametrize(("rule", "servers", "encoded"), [("adam", 5, ()), ("sgd", 3, ENCODED)])
def test_one_worker_trains_a_network_as_one_process_does_bit_for_bit(mpidl, digits, tmp_path, rule, servers, encoded):
    runs = {}
    for name, ranks in (("alone", ()), ("on-ranks", ("-n", servers + 2, "--set", f"topology.servers={servers}"))):
        options = ("--set", f"run.name={name}", "--set", f"server.rule={rule}")
        nodes = {"MPIDL_RANKS_PER_NODE": "1"} if encoded else {}
        done = mpidl("train", digits, *ranks, *options, *encoded, **nodes)
        assert done.returncode == 0, done.stderr
        runs[name] = trained(tmp_path, name)
    expected, found = runs["alone"], runs["on-ranks"]
    assert len(expected) == {"sgd": 4, "adam": 12}[rule]
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_the_initial_parameters_and_deterministic_runs_do_not_depend_on_the_number_of_servers(mpidl, digits, tmp_path):
    runs = {}
    for servers in (1, 3):
        name = f"servers-{servers}"
        options = ("--set", f"run.name={name}", "--set", f"topology.servers={servers}")
        done = mpidl("train", digits, "-n", servers + 3, "--set", "run.deterministic=true", *options, *ENCODED)
        assert done.returncode == 0, done.stderr
        runs[servers] = trained(tmp_path, name)
    assert all(np.array_equal(runs[1][key], runs[3][key]) for key in runs[1])


@pytest.mark.long
def test_cut_replicas_train_as_one_process_does_bit_for_bit_where_no_cut_divides_a_sum(mpidl, tmp_path):
    random = np.random.default_rng(3)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"] = random.normal(size=(101, 13, 5, 2)).astype(np.float32)
            file[f"{split}/y"] = random.normal(size=(101, 11 * 3 * 3)).astype(np.float32)
    job = tmp_path / "local.toml"
    job.write_text(
        """
        run = { epochs = 3, deterministic = true }
        data = { source = "hdf5", path = "data.h5", batch = 23 }
        algorithm = { name = "sync" }
        server = { rule = "adam", rate = 0.01 }
        [model]
        loss = "mean_squared_error"
        [[model.layer]]
        type = "locally_connected2d"
        channels = 3
        activation = "tanh"
        cut = "rows"
        [[model.layer]]
        type = "flatten"
        cut = "rows"
        """
    )
    runs = {}
    for partitions in (1, 4):
        name = f"cut-{partitions}"
        ranks = ("-n", 1 + partitions) if partitions > 1 else ()
        done = mpidl("train", job, *ranks, "--set", f"run.name={name}", "--set", f"topology.partitions={partitions}")
        assert done.returncode == 0, done.stderr
        assert "sums are rounded differently" not in done.stderr
        found = trained(tmp_path, name)
        runs[partitions] = {key: found[key].tobytes() for key in found if key.startswith(("parameters", "rule"))}
        assert len(runs[partitions]) == 6
        assert runs[partitions] == runs[1]


def test_the_summary_has_what_it_promises_and_evaluate_agrees(mpidl, digits, tmp_path):
    done = mpidl("train", digits, "-n", 4, "--json", "--set", "run.target=accuracy >= 0.5", "--set", "run.epochs=50")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert {
        "algorithm", "ranks", "servers", "replicas", "partitions", "epochs", "samples", "seconds",
        "samples_per_second", "train_loss", "test_loss", "test_accuracy", "staleness", "pushes", "fetches",
        "bytes_pushed", "bytes_fetched", "failures", "recoveries", "run_dir",
    } <= summary.keys()  # fmt: skip
    assert summary["command"].startswith(f"mpidl train {digits} -n 4 --json --set ")
    assert (summary["version"], summary["seed"], summary["virtual"]) == (VERSION, 0, False)
    assert summary["hosts"] == {MPI.Get_processor_name(): 4}
    assert summary["mpi"] in MPI.Get_library_version()
    assert summary["staleness"].keys() == {"mean", "p50", "p99", "max"}
    assert (summary["ranks"], summary["servers"], summary["replicas"]) == (4, 1, 2)
    assert summary["test_accuracy"] >= 0.5
    assert summary["epochs"] < 50
    assert summary["bytes_pushed"] == summary["pushes"] * 4 * (64 * 33 + 33 + 33 * 10 + 10)
    directory = tmp_path / "runs" / "digits"
    assert json.loads((directory / "summary.json").read_text()) == summary
    evaluated = mpidl("evaluate", directory, "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    found = json.loads(evaluated.stdout.splitlines()[-1])
    assert found["test_accuracy"] == pytest.approx(summary["test_accuracy"])
    assert found["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-5)
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [record["time"] for record in records] == sorted(record["time"] for record in records)
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events[:2]] == ["placement", "device"]
    assert next(event for event in events if event["event"] == "checkpoint")["step"] == 0


#: 64-33-10, with two parameters and two statistics of each of 33 units.
SIZE, STATISTICS = 65 * 33 + 4 * 33 + 34 * 10, [Range(65 * 33 + 2 * 33, 65 * 33 + 4 * 33)]
CONFIG = """
run = {name = "digits", epochs = 8}
data = {source = "digits", batch = 32}
algorithm = {name = "downpour", wire = "onebit", wire_fetch = "int8"}
server = {rule = "sgd", rate = 0.05}
topology = {relay = true}
[[model.layer]]
type = "dense"
units = 33
[[model.layer]]
type = "batch_normalisation"
activation = "relu"
[[model.layer]]
type = "dense"
units = 10
"""


def test_a_job_learns_from_encoded_sums(mpidl, tmp_path):
    """Of two nodes, the first has coordinator, server and two workers, the second a relay with two workers."""
    (tmp_path / "digits.toml").write_text(CONFIG)
    done = mpidl("train", "digits.toml", "-n", 7, MPIDL_RANKS_PER_NODE="4")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert summary["relays"] == 1
    assert summary["test_accuracy"] > 0.88
    received = sum(summary["staleness_histogram"])
    pushed, fetched = (encoded_bytes(parse(wire), SIZE, "float32", STATISTICS) for wire in ("onebit", "int8"))
    assert received <= summary["pushes"] == 8 * 45
    # Workers beside the server push and fetch the whole vector, as the relay does at its first fetch.
    near, rest = divmod(summary["bytes_pushed"] - received * pushed, 4 * SIZE - pushed)
    assert rest == 0
    assert 0 < near < received
    assert summary["bytes_fetched"] == (near + 1) * 4 * SIZE + (received - near - 1) * fetched
    (residual,) = saved_residuals(Checkpoint(tmp_path / "runs" / "digits" / "checkpoints" / "360"))
    assert residual.shape == (SIZE,)
    assert residual.any()
    assert not residual[slice(*STATISTICS[0])].any()
