"""What `get_extra_state` of a module returns is saved, resumed and exported."""

from pathlib import Path

import pytest
import torch

import mpidl
from mpidl.errors import UsageError
from mpidl.runs.load import export
from torch_modules import mlp


class Counting(torch.nn.Module):
    """Counts its passes in training, and keeps the means of its inputs, outside of its tensors."""

    def __init__(self):
        super().__init__()
        self.layer, self.passes, self.means = torch.nn.Linear(64, 16), 0, torch.zeros(1)

    def forward(self, images):
        if self.training:
            self.passes, self.means = self.passes + 1, torch.cat([self.means, images.mean().reshape(1)])
        return self.layer(images.flatten(1)) * (1 + 0.01 * self.passes)

    def get_extra_state(self):
        return {"passes": self.passes, "means": self.means}

    def set_extra_state(self, state):
        self.passes, self.means = state["passes"], state["means"]


class Stage(torch.nn.Module):
    """The stage of a curriculum, as a tensor alone."""

    def __init__(self):
        super().__init__()
        self.stage = torch.zeros(2)

    def forward(self, inputs):
        self.stage = self.stage + self.training
        return inputs

    def get_extra_state(self):
        return self.stage

    def set_extra_state(self, state):
        self.stage = state


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(Counting(), Stage(), torch.nn.Linear(16, 10))


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a module, and returns the directory of the run."""

    def run(module, **options):
        options = {"rule": mpidl.Sgd(0.05), "deterministic": True, "dir": tmp_path} | options
        return Path(mpidl.train(module, mpidl.Digits(), loss="cross_entropy", **options)["run_dir"])

    return run


def same(found, expected):
    assert found[0].passes == expected[0].passes
    assert isinstance(found[0].passes, int)
    assert torch.equal(found[0].means, expected[0].means)
    assert torch.equal(found[1].stage, expected[1].stage)
    assert torch.equal(found[2].weight, expected[2].weight)


def test_a_rehearsal_leaves_no_trace_and_a_resumed_run_goes_on(train):
    through, resumed = network(), network()
    train(through, name="through", steps=7)
    assert through[0].passes == 7
    assert through[1].stage.tolist() == [7, 7]
    train(network(), name="struck", steps=3)
    train(resumed, name="struck", steps=7, resume=True)
    same(resumed, through)


def test_exports_load_strictly_and_runs_begin_with_them(train, tmp_path):
    module, loaded, begun = network(), network(), network()
    export(train(module, steps=4), "torch", file=tmp_path / "model.pt")
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"), strict=True)
    same(loaded, module)
    train(begun, name="begun", steps=2, initial=tmp_path / "model.pt")
    assert begun[0].passes == 2


def test_an_extra_state_of_something_else_is_one_line(train):
    class Named(torch.nn.Module):
        def forward(self, inputs):
            return inputs

        def get_extra_state(self):
            return {"name": "a"}

        def set_extra_state(self, state):
            pass

    with pytest.raises(UsageError, match=r"Named.get_extra_state: its state has a str as name, expected numbers"):
        train(torch.nn.Sequential(torch.nn.Flatten(), mlp(), Named()), steps=1)
