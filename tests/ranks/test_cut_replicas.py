"""Replicas of several ranks: each algorithm does with them what it does with replicas of one rank."""

import h5py
import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, Exchange
from mpidl.config import from_dict

pytestmark = pytest.mark.mpi(min_size=3)

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
        sections[section] = {**sections.get(section, {}), **table}
    return from_dict(sections)


def trained(comm, config):
    """Return the summary of a run on all ranks."""
    from mpidl.job.build import build
    from mpidl.runs.ranks import run

    return run(config, lambda: build(config), comm)


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


def partitions_for(comm, algorithm):
    """Return the ranks of the world's only replica."""
    servers = 1 if algorithm.exchange in (Exchange.SERVERS, Exchange.OPERATIONS) else 0
    return comm.size - 1 - servers


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"hogwild"}))
def test_one_replica_trains_as_the_uncut_one(comm, shared_path, name):
    algorithm = ALGORITHMS[name]()
    partitions = partitions_for(comm, algorithm)
    if partitions < 2:
        return
    more = {"algorithm": {"name": name}}
    if name == "sandblaster":
        more["run"] = {"steps": 288 * 3}
    config = configured(shared_path, "cut", topology={"partitions": partitions}, **more)
    summary = trained(comm, config)
    assert summary["partitions"] == partitions
    if comm.rank:
        return
    alone = trained_alone(configured(shared_path, "whole", **more))
    for key in ("samples", "epochs", "pushes", "replicas"):
        assert summary[key] == alone[key], key
    for key in ("test_loss", "test_accuracy", "train_loss"):
        assert summary[key] == pytest.approx(alone[key], rel=1e-10), key
    first, whole = saved(shared_path, "cut", 0)[0], saved(shared_path, "whole", 0)[0]
    assert {each: values.tobytes() for each, values in first.items()} == {
        each: values.tobytes() for each, values in whole.items()
    }
    last, whole = saved(shared_path, "cut")[0], saved(shared_path, "whole")[0]
    assert last.keys() == whole.keys()
    for each, values in whole.items():
        np.testing.assert_allclose(last[each], values, rtol=1e-9, atol=1e-10, err_msg=each)
