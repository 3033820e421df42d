"""Before the clock starts everything is compiled, and the rehearsal changes nothing."""

import tomllib

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from mpidl.algorithms import ALGORITHMS
from mpidl.config import from_dict
from mpidl.data import ArraySplit, Dataset
from mpidl.engines.virtual import VirtualEngine
from mpidl.jit import Compiled
from mpidl.job.build import build
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import local_model
from mpidl.job.rehearsal import rehearse_replica, rehearse_shard
from mpidl.nn import Dense, Flatten, Network, SparseEmbedding
from mpidl.nn.kernels.cpu import elementwise
from mpidl.rules import rule
from mpidl.runs.one_process import OneProcess
from mpidl.tables import admission, distinct, entries, index, rows
from mpidl.wire import wire

KERNELS = (elementwise.relu, elementwise.backprop_relu)
TABLES = (admission, distinct, entries, index, rows)
LAYERS = [{"type": "dense", "units": 8, "activation": "relu"}, {"type": "dense", "units": 10}]


def configuration(path, name, **more):
    return from_dict(
        {
            "run": {"dir": str(path), "steps": 30},
            "data": {"source": "digits", "batch": 64},
            "model": {"layer": [{"type": "layer_normalisation"}, {"type": "dropout"}, *LAYERS], "l2": 0.01},
            "algorithm": {"name": name, **more},
            "device": {"kind": "cpu"},
        }
    )


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, or loaded from Numba's cache, from now on; as if nothing of shards, rows or relu had been."""
    rule.compiled.cache_clear()
    wire.compiled.cache_clear()
    kernels = [cell.cell_contents for each in KERNELS for cell in each.__closure__]
    for loop in [*kernels, *(each for module in TABLES for each in vars(module).values())]:
        if isinstance(loop, Compiled) and isinstance(loop.made, Dispatcher):
            loop.made._reset_overloads()
    names, add = [], Dispatcher.add_overload

    def noting(self, result):
        names.append(self.__name__)
        add(self, result)

    monkeypatch.setattr(Dispatcher, "add_overload", noting)
    return names


@pytest.mark.parametrize(
    ("name", "more"),
    [(name, {}) for name in ALGORITHMS if name != "stacking"]
    + [
        ("downpour", {"wire": "onebit"}),
        ("downpour", {"wire_fetch": "int8"}),
        ("downpour", {"wire": "topk:0.1"}),
        ("downpour", {"rate": 0.01, "n_push": 4}),
    ],
)
def test_nothing_is_compiled_while_a_run_trains(tmp_path, monkeypatch, compiled, name, more):
    at_start, run = [], VirtualEngine.run
    monkeypatch.setattr(VirtualEngine, "run", lambda self: (at_start.extend(compiled), run(self))[1])
    OneProcess(build(configuration(tmp_path, name, **more))).run()
    assert compiled == at_start
    assert {"relu", "backprop_relu"} <= set(at_start)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 40, "admission": 2}, {"max_age": 3, "admission": 0.5}])
def test_nothing_of_tables_is_compiled_while_a_run_trains(tmp_path, monkeypatch, compiled, settings):
    at_start, run, split = [], VirtualEngine.run, ArraySplit(np.arange(900).reshape(300, 3) % 200, np.zeros(300, int))
    monkeypatch.setattr(VirtualEngine, "run", lambda self: (at_start.extend(compiled), run(self))[1])
    network = Network([SparseEmbedding(4), Flatten(), Dense(2)], (3,))
    config = configuration(tmp_path, "downpour").to_toml()
    values = tomllib.loads(config) | {"model": {"factory": "a:b"}, "tables": settings}
    values["data"] = {"source": "digits", "batch": 16}
    OneProcess(Job.of(from_dict(values), Dataset("test", (3,), 2, split, split), network)).run()
    assert compiled == at_start


@pytest.mark.parametrize("name", ["downpour", "easgd", "hogwild", "sandblaster", "averaging"])
def test_a_rehearsal_changes_nothing(tmp_path, name):
    job = build(configuration(tmp_path, name))
    before = job.original.parameters.copy()
    placed = place(job, 1)
    rehearse_shard(placed)
    rehearse_replica(placed, local_model(placed))
    assert np.array_equal(job.original.parameters, before)


def test_a_model_of_a_users_own_is_left_alone(tmp_path, monkeypatch):
    job = build(configuration(tmp_path, "downpour"))
    monkeypatch.setattr(type(job.original), "own", True)
    monkeypatch.setattr(type(job.original), "loss_and_gradient", None)
    placed = place(job, 1)
    rehearse_replica(placed, local_model(placed))
