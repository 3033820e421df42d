"""The average of the weights on ranks: what workers evaluate is what servers or workers average."""

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Averaging
from mpidl.parameters import Range
from mpidl.storage.checkpoints import latest, read

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.mark.parametrize("transport", ["windows", "messages"])
@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        (mpidl.Downpour(), {"servers": 1}),
        (mpidl.Sync(), {}),
        (Averaging(tau=4), {}),
    ],
)
def test_all_evaluate_the_average(comm, shared_path, algorithm, topology, transport):
    network = mpidl.Network([mpidl.Dense(12, activation="relu"), mpidl.Dense(10)], (8, 8))
    name = f"average-{algorithm.name}-{transport}"
    keywords = {"algorithm": algorithm, "dir": shared_path, "name": name, "ema": 0.9, "device": "cpu", **topology}
    keywords |= {"transport": transport, "batch": 32}
    summary = mpidl.train(network, mpidl.Digits(), epochs=1, **keywords)
    summary = mpidl.train(network, mpidl.Digits(), epochs=3, resume=True, **keywords)
    saved, layout = latest(shared_path / name), network.layout
    averaged = saved.read("rule/ema", Range(0, layout.size), layout)
    assert np.array_equal(network.parameters, averaged)
    assert not np.array_equal(averaged, saved.read("parameters", Range(0, layout.size), layout))
    figures = mpidl.evaluate(shared_path / name, network, mpidl.Digits())
    assert figures["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-5)
    assert np.array_equal(read(saved).parameters["0-dense/bias"], network.layout.views(averaged)["0-dense/bias"])
