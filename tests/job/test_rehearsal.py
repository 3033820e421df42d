"""Before the clock starts everything is compiled, and the rehearsal changes nothing."""

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from mpidl.algorithms import ALGORITHMS
from mpidl.config import from_dict
from mpidl.engines.virtual import VirtualEngine
from mpidl.job.build import build
from mpidl.job.local_model import local_model
from mpidl.job.placed import place
from mpidl.job.rehearsal import rehearse_replica, rehearse_shard
from mpidl.nn.kernels.cpu import elementwise
from mpidl.rules import rule
from mpidl.runs.one_process import OneProcess
from mpidl.wire import wire

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
    """What is compiled, or loaded from Numba's cache, from now on; as if nothing of a shard or of relu had been."""
    rule.compiled.cache_clear()
    wire.compiled.cache_clear()
    for each in (elementwise.relu, elementwise.backprop_relu):
        (loop,) = (cell.cell_contents for cell in each.__closure__)
        loop._reset_overloads()
    names, add = [], Dispatcher.add_overload

    def noting(self, result):
        names.append(self.__name__)
        add(self, result)

    monkeypatch.setattr(Dispatcher, "add_overload", noting)
    return names


@pytest.mark.parametrize(
    ("name", "more"),
    [(name, {}) for name in ALGORITHMS]
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
