"""Replicas of several ranks: each algorithm does with them what it does with replicas of one rank."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
from small_runs import run_job as trained

import mpidl
from mpidl.algorithms import ALGORITHMS
from mpidl.config import from_dict
from rows import long_but

pytestmark = pytest.mark.mpi(min_size=4)

LAYERS = [
    {"type": "conv2d", "channels": 3, "size": 3, "activation": "tanh"},
    {"type": "dense", "units": 13, "activation": "tanh"},
    {"type": "dense", "units": 10},
]
GROUPS = [
    {"match": "2-dense.bias", "frozen": True},
    {"match": "*.bias", "rate": 0.5},
    {"match": "1-*", "weight_decay": 0.1},
]


def configured(directory, name, **more):
    sections = {
        "run": {"dir": str(directory), "name": name, "steps": 11},
        "data": {"source": "digits", "batch": 25, "portion": 50},
        "model": {"layer": LAYERS, "group": GROUPS, "dtype": "float64", "l2": 0.01, "clip": 1.5},
        "algorithm": {"name": "downpour"},
        "device": {"kind": "cpu"},
    }
    for section, table in more.items():
        merged = {**sections.get(section, {}), **table}
        sections[section] = {key: value for key, value in merged.items() if value is not None}
    return from_dict(sections)


def trained_alone(config):
    """Return the summary of a run in one process."""
    from mpidl.job.build import build
    from mpidl.runs.one_process import OneProcess

    return OneProcess(build(config)).run()


def saved(directory, name, step=None):
    """Return the tensors of a run's checkpoint, by default the last, and of what shards kept beside the parameters."""
    found = {}
    checkpoints = directory / name / "checkpoints"
    newest = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal())
    with h5py.File(checkpoints / str(newest if step is None else step) / "index.h5") as index:
        for group in ("parameters", "rule"):
            if group in index:
                index[group].visititems(
                    lambda path, item, group=group: (
                        found.update({f"{group}/{path}": item[...]}) if isinstance(item, h5py.Dataset) else None
                    )
                )
        return found, dict(index.attrs)


def assert_close(found, expected):
    """Compare the tensors of two checkpoints."""
    assert found.keys() == expected.keys()
    for each, values in expected.items():
        np.testing.assert_allclose(found[each], values, rtol=1e-9, atol=1e-10, err_msg=each)


def partitions_for(comm, algorithm):
    """Return the ranks of the world's only replica."""
    servers = 1 if algorithm.exchange.has_servers else 0
    return comm.size - 1 - servers


@pytest.mark.parametrize(
    "name",
    long_but(
        ("downpour", "dcasgd", "easgd", "averaging", "sandblaster", "sync"),
        sorted(set(ALGORITHMS) - {"hogwild", "stacking"}),
    ),
)
def test_one_replica_trains_as_the_uncut_one(comm, shared_path, name):
    algorithm = ALGORITHMS[name]()
    partitions = partitions_for(comm, algorithm)
    more = {"algorithm": {"name": name}}
    if name == "sandblaster":
        more["run"] = {"steps": 288 * 2}
    config = configured(shared_path, "cut", topology={"partitions": partitions}, **more)
    summary = trained(comm, config)
    assert summary["partitions"] == partitions
    if comm.rank == 0:
        alone = trained_alone(configured(shared_path, "whole", **more))
        for key in ("samples", "epochs", "pushes", "replicas"):
            assert summary[key] == alone[key], key
        for key in ("test_loss", "test_accuracy", "train_loss"):
            assert summary[key] == pytest.approx(alone[key], rel=1e-10), key
        first, whole = saved(shared_path, "cut", 0)[0], saved(shared_path, "whole", 0)[0]
        assert {each: values.tobytes() for each, values in first.items()} == {
            each: values.tobytes() for each, values in whole.items()
        }
        assert_close(saved(shared_path, "cut")[0], saved(shared_path, "whole")[0])


def test_a_deterministic_run_has_the_same_bits_where_no_cut_divides_a_sum(comm, shared_path):
    if comm.rank == 0:
        random = np.random.default_rng(3)
        with h5py.File(shared_path / "data.h5", "w") as file:
            for split in ("train", "test"):
                file[f"{split}/x"] = random.normal(size=(101, 9, 5, 2)).astype(np.float32)
                file[f"{split}/y"] = random.normal(size=(101, 7 * 3 * 2)).astype(np.float32)
    comm.Barrier()
    layers = [
        {"type": "locally_connected2d", "channels": 2, "size": 3, "activation": "tanh", "cut": "rows"},
        {"type": "flatten", "cut": "rows"},
    ]
    more = {
        "run": {"deterministic": True},
        "data": {"source": "hdf5", "path": str(shared_path / "data.h5")},
        "model": {"layer": layers, "loss": "mean_squared_error", "group": None, "dtype": "float32", "clip": None},
        "algorithm": {"name": "sync"},
        "server": {"rule": "adam", "rate": 0.01},
    }
    trained(comm, configured(shared_path, "cut", topology={"partitions": comm.size - 1}, **more))
    if comm.rank == 0:
        trained_alone(configured(shared_path, "whole", **more))
        for each, values in saved(shared_path, "whole")[0].items():
            assert saved(shared_path, "cut")[0][each].tobytes() == values.tobytes(), each


def without_parameters_in_all_stages_but_the_last(comm, name):
    """Return the sections of such a job, cut and whole."""
    stages = partitions_for(comm, ALGORITHMS[name]())
    layers = [{"type": "activation", "activation": "tanh"}] * (stages - 1) + [{"type": "dense", "units": 10}]
    whole = {"algorithm": {"name": name}, "model": {"layer": layers, "group": None}}
    return {**whole, "topology": {"partitions": stages, "stages": stages}}, whole


def test_a_stage_without_parameters_trains_through_servers(comm, shared_path):
    cut, whole = without_parameters_in_all_stages_but_the_last(comm, "downpour")
    trained(comm, configured(shared_path, "cut", **cut))
    if comm.rank == 0:
        trained_alone(configured(shared_path, "whole", **whole))
        assert_close(saved(shared_path, "cut")[0], saved(shared_path, "whole")[0])


def test_a_stage_without_parameters_does_not_train_by_reduction(comm, shared_path):
    cut, _ = without_parameters_in_all_stages_but_the_last(comm, "averaging")
    stages = cut["topology"]["stages"]
    line = rf"topology.partitions: {stages}, but partition 0 has 0 parameters to divide among 1 replicas"
    with pytest.raises(mpidl.UsageError, match=line):
        trained(comm, configured(shared_path, "cut", **cut))


def test_a_run_that_is_resumed_goes_on_as_an_unbroken_one(comm, shared_path, monkeypatch):
    """With what the wire format has left out, of which each rank keeps its slice."""
    if comm.size != 4:
        pytest.skip("takes 4 ranks")
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    algorithm = {"name": "downpour", "n_push": 4, "n_fetch": 4, "rate": 0.05, "wire": "bf16"}
    cut = {"topology": {"partitions": 2}, "algorithm": algorithm}
    trained(comm, configured(shared_path, "unbroken", **cut))
    trained(comm, configured(shared_path, "broken", run={"steps": 8}, **cut))
    from mpidl.job.build import build
    from mpidl.runs.ranks import run
    from mpidl.storage.checkpoints import latest

    def resumed():
        return replace(build(config, latest(shared_path / "broken")), continues=True)

    config = configured(shared_path, "broken", **cut)
    run(config, resumed, comm)
    if comm.rank == 0:
        for each, values in saved(shared_path, "unbroken")[0].items():
            assert saved(shared_path, "broken")[0][each].tobytes() == values.tobytes(), each


def test_every_rank_gets_the_trained_network_of_a_script(comm, shared_path):
    network = mpidl.Network([mpidl.Dense(13, "relu"), mpidl.Dense(10)], (8, 8), seed=1)
    mpidl.train(
        network, mpidl.Digits(), algorithm=mpidl.Sync(), partitions=comm.size - 1, epochs=1, batch=64, dir=shared_path,
        device="cpu",
    )  # fmt: skip
    if comm.rank == 0:
        tensors = saved(shared_path, "run")[0]
        expected = np.concatenate([tensors[f"parameters/{name}"].ravel() for name in network.layout.shapes])
        assert np.array_equal(network.parameters, expected)
    assert len(set(comm.allgather(network.parameters.tobytes()))) == 1


def test_evaluations_have_the_metrics_of_all_outputs(comm, shared_path):
    more = {"run": {"metrics": ["top5_accuracy"]}, "algorithm": {"name": "sync"}}
    summary = trained(comm, configured(shared_path, "cut", topology={"partitions": comm.size - 1}, **more))
    if comm.rank == 0:
        alone = trained_alone(configured(shared_path, "whole", **more))
        names = {key for key in summary if key.startswith("test_")}
        assert names == {"test_loss", "test_accuracy", "test_top5_accuracy"}
        assert summary["test_top5_accuracy"] == alone["test_top5_accuracy"]


def test_the_bytes_that_replicas_move_are_those_of_the_plan(comm, shared_path):
    from mpidl.job.build import build
    from mpidl.job.planning import cut

    algorithm = {"name": "sync"}
    config = configured(shared_path, "cut", algorithm=algorithm, topology={"partitions": comm.size - 1})
    summary = trained(comm, config)
    plan = cut(build(config), comm.size - 1)
    # There and back, in float64.
    step = 2 * 8 * sum(int(each.elements.sum()) for each in plan.traffic(25))
    assert summary["bytes_moved"] == 11 * step > 0


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"algorithm": {"name": "hogwild"}}, r"topology.partitions: 2, but hogwild's replicas share one whole vector"),
        ({"model": {"layer": None, "group": None, "dtype": None, "l2": None, "clip": None,
                    "factory": "test_cut_replicas:flat"}},
         r"topology.partitions: 2, but only networks of layers can be cut, expected 1"),
        ({"topology": {"partitions": 500}}, r"\d ranks are too few: .* 1 replica of 500 workers need 502"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_one_line(comm, shared_path, more, line):
    if comm.size != 4:
        pytest.skip("takes 4 ranks")
    with pytest.raises(mpidl.UsageError, match=f"^{line}"):
        trained(comm, configured(shared_path, "cut", **{"topology": {"partitions": 2}} | more))


@pytest.mark.parametrize("name", ["downpour", "sandblaster"])
def test_on_devices_replicas_are_cut_as_on_the_host(comm, shared_path, cupy, name):
    partitions = partitions_for(comm, ALGORITHMS[name]())
    more = {"algorithm": {"name": name}, "model": {"layer": LAYERS[1:], "group": GROUPS[1:2]}}
    if name == "sandblaster":
        more["run"] = {"steps": 288}
    topology = {"partitions": partitions}
    device = trained(comm, configured(shared_path, "device", topology=topology, device={"kind": "cuda"}, **more))
    host = trained(comm, configured(shared_path, "host", topology=topology, **more))
    for key in ("test_loss", "train_loss"):
        assert device[key] == pytest.approx(host[key], rel=1e-10), key


def flat(dataset, seed):
    """Return a model that can't be cut."""
    return Flat()


class Flat:
    def __init__(self):
        self.parameters = np.zeros(3)

    def loss_and_gradient(self, batch):
        return 0.0, np.zeros(3)
