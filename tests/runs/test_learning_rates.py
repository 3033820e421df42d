"""Each record of a run has the learning rates at that time, and the norm of a recent gradient."""

import json
import time

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.data import Dataset, opened
from mpidl.job.build import build_model

#: The rate halves after an epoch.
STEPS = {"schedule": "steps", "epochs": [1], "factor": 0.5}
LAYERS = [{"type": "dense", "units": 6}, {"type": "batch_normalisation"}, {"type": "dense", "units": 10}]


def records(path):
    return [json.loads(line) for line in (path / "run" / "metrics.jsonl").read_text().splitlines()]


def train(path, algorithm, rate=STEPS, **sections):
    config = {
        "run": {"dir": str(path), "epochs": 2, "report": 1e-9}, "data": {"source": "digits", "batch": 64},
        "model": {"layer": [{"type": "dense", "units": 10}]}, "algorithm": algorithm,
        **({"rate": rate} if rate else {}), **sections,
    }  # fmt: skip
    mpidl.train(config=config)
    return records(path)


@pytest.mark.parametrize(
    ("algorithm", "server", "worker"),
    [
        ({"name": "downpour"}, (0.25, 0.125), (None, None)),
        ({"name": "downpour", "rate": 0.0625}, (0.25, 0.125), (0.0625, 0.03125)),
        ({"name": "hogwild"}, (0.25, 0.125), (None, None)),
        ({"name": "sync"}, (0.25, 0.125), (None, None)),
        ({"name": "easgd", "rate": 0.5}, (None, None), (0.5, 0.25)),
        ({"name": "diloco", "rate": 0.5}, (0.75, 0.75), (0.5, 0.25)),  # the outer rate stays
    ],
)
def test_rates_follow_their_schedule(tmp_path, algorithm, server, worker):
    outer = {"rule": "sgd", "rate": 0.75 if algorithm["name"] == "diloco" else 0.25}
    rule = {} if server == (None, None) else {"server": outer}
    found = train(tmp_path, algorithm, **rule)
    assert (found[0]["server_rate"], found[-1]["server_rate"]) == server
    assert (found[0]["worker_rate"], found[-1]["worker_rate"]) == worker
    early = [record for record in found if record["server_rate"] == server[0] and record["worker_rate"] == worker[0]]
    assert all(record["epoch"] <= 1.1 for record in early[:-1]) or server[0] is worker[0] is None


def test_the_norm_is_that_of_the_gradient(tmp_path, least_squares):
    """Of a model whose gradient never changes."""

    class Constant:
        def __init__(self):
            self.parameters = np.zeros(4)

        def loss_and_gradient(self, batch):
            return 1.0, np.array([1.0, -2.0, 2.0, 4.0])

    _, split = least_squares()
    data = Dataset("test", (1,), None, split, split)
    for number, groups in enumerate(([], [{"match": "*", "rate": 2.0}])):
        mpidl.train(Constant(), data, rule=mpidl.Sgd(0.5), groups=groups, batch=8, epochs=1, dir=tmp_path / str(number))
        assert records(tmp_path / str(number))[-1]["gradient_norm"] == 5.0


def test_the_norm_at_an_evaluation_is_of_a_late_gradient(tmp_path, least_squares):
    """Of a model whose gradient has the norm 1 in the first step, 2 in the second, and so on."""
    _, split = least_squares()
    steps = -(-split.samples // 8)

    class Growing:
        def __init__(self):
            self.parameters, self.gradients = np.zeros(4), 0

        def loss_and_gradient(self, batch):
            self.gradients += 1
            time.sleep(0.01)
            return 1.0, np.array([0.0, 0, 0, self.gradients])

        def evaluate(self, batch):
            return float(len(batch.targets)), 0

    data = Dataset("test", (1,), None, split, split)
    mpidl.train(Growing(), data, rule=mpidl.Sgd(0.5), batch=8, epochs=3, dir=tmp_path)
    found = {record["epoch"]: record["gradient_norm"] for record in records(tmp_path) if record["test_loss"]}
    assert found == pytest.approx({epoch: epoch * steps for epoch in (1, 2, 3)}, rel=0.2)


def test_statistics_and_frozen_parameters_do_not_count(tmp_path):
    groups = [{"match": "0-dense.*", "frozen": True}]
    sections = {"model": {"layer": LAYERS, "group": groups}, "data": {"source": "digits", "batch": 1437}}
    found = train(tmp_path, {"name": "downpour"}, None, **sections, run={"dir": str(tmp_path), "steps": 1})[-1]
    config = mpidl.config.from_dict({**sections, "run": {"steps": 1}})
    model = build_model(config, dataset := opened(config.data_source))
    model.parameters[:] = np.concatenate([tensor.ravel() for tensor in first_values(tmp_path, model)])
    gradient = model.loss_and_gradient(dataset.train.gather(np.arange(1437)))[1]
    names = [
        part
        for part in model.layout
        if part.name.split("/")[0] != "0-dense" and part.name.split("/")[1] not in ("mean", "variance")
    ]
    squares = [np.sum(np.square(gradient[slice(*part.range)], dtype=float)) for part in names]
    assert found["gradient_norm"] == pytest.approx(np.sqrt(sum(squares)), rel=1e-4)


def first_values(path, model):
    with h5py.File(path / "run" / "checkpoints" / "0" / "index.h5") as file:
        return [file[f"parameters/{part.name}"][:] for part in model.layout]


def test_an_iteration_has_the_norm_of_the_whole_gradient(tmp_path):
    last = train(tmp_path, {"name": "sandblaster"}, None)[-1]
    assert last["gradient_norm"] == last["iteration"]["gradient_norm"] > 0
    assert (last["server_rate"], last["worker_rate"]) == (None, None)
