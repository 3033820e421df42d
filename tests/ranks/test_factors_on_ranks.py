"""Gradients travel as factors: no update is lost, and one worker is serial SGD but for rounding."""

from dataclasses import replace

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import BackupSync, Downpour, Softsync, Ssp
from mpidl.data import Dataset
from mpidl.data.arrays import ArraySplit
from mpidl.nn import CompleteModel, Network
from mpidl.nn.layers import Dense
from mpidl.nn.model import Evaluation
from mpidl.parameters.layout import Layout
from mpidl.rules import Sgd
from mpidl.transport import mailbox_geometry
from mpidl.wire import Factors, Matrix

pytestmark = pytest.mark.mpi(min_size=3)


class Outer(CompleteModel):
    """A tally: its gradient is integers, whatever the parameters; that of a weight (37, 23) within it has factors."""

    WEIGHT = Matrix(5, 37, 23)

    def __init__(self):
        self.parameters = np.zeros(self.WEIGHT.range.stop + 4)
        self.layout, self.dtype = Layout([("parameters", self.parameters.shape)]), self.parameters.dtype
        self._gradient = np.empty_like(self.parameters)

    def matrices(self, batch=None):
        return [self.WEIGHT]

    def loss_and_gradient(self, batch):
        self._gradient.fill(len(batch.inputs))
        self._gradient[slice(*self.WEIGHT.range)] = (batch.inputs.T @ batch.targets).reshape(-1)
        return 0.0, self._gradient

    def evaluate(self, batch):
        return Evaluation(0.0, float("nan"))

    def wait_free_gradient(self, batch, take, factored=None):
        samples, weight = len(batch.inputs), self.WEIGHT.range
        none, factors = Factors(samples), Factors(samples, batch.inputs, batch.targets)
        self._gradient.fill(np.nan)
        self._gradient[weight.stop :] = samples
        take(self._gradient, weight.stop, None if factored is None else none)
        if factored is None or weight.start not in factored:
            self._gradient[slice(*weight)] = (batch.inputs.T @ batch.targets).reshape(-1)
        take(self._gradient, weight.start, None if factored is None else factors)
        self._gradient[: weight.start] = samples
        take(self._gradient, 0, None if factored is None else none)
        return 0.0, self._gradient


def numbered(samples=101):
    random = np.random.default_rng(0)
    inputs, targets = (random.integers(-9, 9, (samples, n)).astype(np.float64) for n in (37, 23))
    return ArraySplit(inputs, targets)


@pytest.mark.parametrize(("slots", "within_nodes"), [(2, True), (32, False)])
@pytest.mark.parametrize("algorithm", [Downpour(), Ssp(1), Softsync(1), Softsync(1, modulate=False), BackupSync()])
def test_no_update_is_lost(comm, shared_path, monkeypatch, transport, algorithm, slots, within_nodes):
    """Some algorithms let gradients leave early; servers on a worker's own node may get them as they are."""
    monkeypatch.setattr(mailbox_geometry, "MOST_SLOTS", slots)
    split, servers = numbered(), 1 if comm.size == 3 else 2
    model = Outer()
    summary = mpidl.train(
        model, Dataset("test", (37,), None, split, split), config={"topology": {"transport": transport}}, epochs=2,
        batch=8, seed=7, dir=str(shared_path), rule=Sgd(1.0), servers=servers,
        algorithm=replace(algorithm, wire="factors", wire_within_nodes=within_nodes),
    )  # fmt: skip
    if comm.size > 3 and (isinstance(algorithm, BackupSync) or algorithm == Softsync(1)):
        return  # These drop what is late, or weigh it.
    everything = split.gather(np.arange(split.samples))
    expected = np.full(model.parameters.size, -2.0 * split.samples)
    expected[slice(*model.WEIGHT.range)] = -2 * (everything.inputs.T @ everything.targets).reshape(-1)
    workers = comm.size - 1 - servers
    assert np.array_equal(model.parameters * (workers if isinstance(algorithm, Softsync) else 1), expected)
    whole = model.parameters.nbytes * summary["pushes"]
    assert summary["bytes_pushed"] < whole if within_nodes else summary["bytes_pushed"] <= whole


@pytest.mark.parametrize("servers", [1, 2])
def test_one_worker_trains_as_without_but_for_rounding(comm, shared_path, transport, servers):
    if comm.size != 2 + servers:
        return
    random, found = np.random.default_rng(1), []
    split = ArraySplit(random.normal(size=(50, 29)), random.integers(0, 5, 50))
    for wire in ("fp32", "factors"):
        model = Network([Dense(31, activation="relu"), Dense(17, activation="tanh"), Dense(5)], (29,), dtype="float64")
        summary = mpidl.train(
            model, Dataset("test", (29,), 5, split, split), config={"topology": {"transport": transport}}, epochs=2,
            batch=8, dir=str(shared_path / wire), rule=Sgd(0.1), servers=servers, algorithm=Downpour(wire=wire),
        )  # fmt: skip
        found.append((model.parameters.copy(), summary["bytes_pushed"]))
    (expected, whole), (parameters, nbytes) = found
    np.testing.assert_allclose(parameters, expected, rtol=1e-9, atol=1e-12)
    assert nbytes < 0.9 * whole
