"""PyTorch's modules cut into stages: a replica of several ranks trains them as one rank does."""

from itertools import pairwise

import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict
from mpidl.data.batch import Batch
from mpidl.partition.schedules import SCHEDULES
from mpidl.partition.section import Section
from mpidl.partition.sections import sections_of

pytestmark = pytest.mark.mpi(min_size=4)
torch = pytest.importorskip("torch")


def make(dataset, seed):
    """Return a module of three trained modules, and its loss."""
    torch.manual_seed(seed)
    nn, kind = torch.nn, torch.float64
    layers = [nn.Linear(64, 13, dtype=kind), nn.Tanh(), nn.Linear(13, 11, dtype=kind), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(11, 10, dtype=kind)), nn.CrossEntropyLoss()


class Counts:
    """A state of plain attributes: how often a module was called for a gradient, and a list."""

    calls, seen = 0, ()

    def state(self):
        return {"calls": self.calls, "seen": np.array(self.seen, int)}

    def load_state(self, state):
        self.calls, self.seen = state["calls"], state["seen"].tolist()

    def count(self, values):
        if values.requires_grad:
            self.calls, self.seen = self.calls + 1, [*self.seen, self.calls]


class Counting(Counts, torch.nn.Tanh):
    def forward(self, values):
        self.count(values)
        return super().forward(values)


class CountingLoss(Counts, torch.nn.CrossEntropyLoss):
    def forward(self, outputs, targets):
        self.count(outputs)
        return super().forward(outputs, targets)


def trained(comm, shared_path, name, penalties, **topology):
    from mpidl.job.build import build
    from mpidl.runs.ranks import run

    config = from_dict(
        {
            "run": {"dir": str(shared_path), "name": name, "steps": 11},
            "data": {"source": "digits", "batch": 25},
            "model": {"factory": "test_modules_in_stages:make", **penalties},
            "algorithm": {"name": "downpour"},
            "server": {"rule": "sgd", "rate": 0.1},
            "topology": topology,
            "device": {"kind": "cpu"},
        }
    )
    return run(config, lambda: build(config), comm)


def test_every_rank_gets_what_each_stage_counts(comm, shared_path):
    nn = torch.nn
    blocks = [nn.Sequential(nn.Linear(13, 11), Counting()), nn.BatchNorm1d(11), nn.Linear(11, 10)]
    module, loss = nn.Sequential(nn.Flatten(), nn.Linear(64, 13), nn.BatchNorm1d(13), *blocks), CountingLoss()
    counters = [module[3][1], loss]
    options = {"partitions": 2, "stages": 2, "servers": comm.size - 3, "batch": 25}
    for steps in (4, 6):
        mpidl.train(module, mpidl.Digits(), loss=loss, steps=steps, dir=shared_path, resume=steps > 4, **options)
        for each in counters:
            assert (each.calls, each.seen) == (8 * steps, list(range(8 * steps)))
            each.calls, each.seen = 0, []
        assert [int(module[each].num_batches_tracked) for each in (2, 4)] == [8 * steps, 8 * steps]
        tensors = mpidl.load(shared_path / "run").tensors
        assert [int(tensors[f"{each}.num_batches_tracked"]) for each in (2, 4)] == [8 * steps, 8 * steps]


@pytest.mark.parametrize(
    "penalties", [{}, {"l2": 0.1, "clip": 0.2}, {"clip": 0.2, "group": [{"match": "1.*", "frozen": True}]}]
)
def test_stages_train_as_the_whole_module(comm, shared_path, monkeypatch, penalties):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    stages = comm.size - 2
    whole = comm.Split(0 if comm.rank < 3 else 1)
    if comm.rank < 3:
        expected = trained(whole, shared_path, "whole", penalties)
    whole.Free()
    found = trained(comm, shared_path, "cut", penalties, partitions=stages, stages=stages, micro_batches=3)
    if comm.rank == 0:
        assert found["partitions"] == stages
        for name in ("train_loss", "test_loss", "test_accuracy"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)
        one, other = (mpidl.load(shared_path / name).parameters for name in ("whole", "cut"))
        for name, tensor in one.items():
            np.testing.assert_allclose(other[name], tensor, rtol=1e-9, atol=1e-12)


def perceptron():
    torch.manual_seed(2)
    sizes = [64, 257, 255, 256, 10]
    modules = [module for pair in pairwise(sizes) for module in (torch.nn.Linear(*pair), torch.nn.Tanh())]
    return torch.nn.Sequential(*modules[:-1]).double()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_and_figures_are_the_whole_modules(comm, group, schedule):
    from mpidl.torch import TorchModel

    random = np.random.default_rng(1)
    batch = Batch(random.normal(size=(403, 64)), random.integers(0, 10, 403))
    whole = TorchModel(perceptron(), "cross_entropy")
    plan = sections_of(whole, comm.size)
    section = Section(whole, plan, comm.rank, schedule=schedule, micro_batches=5)
    section.bind(group)
    for _ in range(2):
        loss, gradient = section.loss_and_gradient(batch)
    figures = section.evaluate(batch)
    section.unbind()
    found = plan.layout.views(np.concatenate(comm.allgather(gradient)))
    expected, gradient = whole.loss_and_gradient(batch)
    assert loss == pytest.approx(expected, rel=1e-12)
    for name, each in whole.layout.views(gradient).items():
        np.testing.assert_allclose(found[name], each, rtol=0, atol=1e-12, err_msg=name)
    evaluated = whole.evaluate(batch)
    if comm.rank == 0:
        assert figures[:2] == (pytest.approx(evaluated.loss, rel=1e-12), evaluated.correct)
