"""What a module changes itself comes back as in a plain loop: in the module, in checkpoints, and in a resumed run."""

from pathlib import Path

import numpy as np
import pytest
import torch

import mpidl
from changing_modules import (
    BATCH,
    MODULES,
    RATE,
    Anew,
    Centred,
    Changing,
    Clamped,
    Margins,
    Private,
    Sums,
    plain,
    same,
    tensors_of,
)
from mpidl.errors import UsageError
from mpidl.runs.load import export
from mpidl.torch import TorchModel, sections
from mpidl.torch.arrays import put_together
from torch_modules import mlp


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a module, and returns the directory of the run."""

    def run(module, loss="cross_entropy", *, steps=20, **options):
        options = {"rule": mpidl.Sgd(RATE), "batch": BATCH, "deterministic": True, "dir": tmp_path} | options
        return mpidl.train(module, mpidl.Digits(), loss=loss, steps=steps, **options)["run_dir"]

    return run


@pytest.mark.parametrize("make", [*MODULES, Clamped])
def test_a_module_ends_as_in_a_plain_loop(train, make):
    module = make()
    train(module)
    expected, begun = plain(make()), tensors_of(make())
    same(tensors_of(module), expected)
    assert any(not torch.equal(expected[name], begun[name]) for name in begun if "layer" not in name) or make is Clamped


@pytest.mark.parametrize("make", MODULES)
def test_checkpoints_have_it_and_resumed_runs_go_on_with_it(train, make):
    module, resumed, evaluated = make(), make(), make()
    run = train(module, name="through", servers=2)
    saved = mpidl.load(run).tensors
    found = put_together({name: torch.as_tensor(values) for name, values in saved.items()})
    same(dense(found), dense(module.state_dict()))
    train(make(), name="struck", steps=9)
    train(make(), name="struck", steps=13, resume=True, servers=3)
    train(resumed, name="struck", resume=True)
    same(tensors_of(resumed), tensors_of(module))
    mpidl.evaluate(run, evaluated, mpidl.Digits())
    same(tensors_of(evaluated), tensors_of(module))


@pytest.mark.parametrize("make", [Anew, Private, Sums])
def test_a_module_resumes_its_own_run(train, make):
    """Its buffers have other values by then: what was infinite is finite."""
    module, through = make(), make()
    train(through, name="through")
    train(module, name="struck", steps=9)
    train(module, name="struck", resume=True)
    same(tensors_of(module), tensors_of(through))
    copied = TorchModel(module, "cross_entropy").on(np)
    assert list(copied.layout.shapes) == list(TorchModel(make(), "cross_entropy").layout.shapes)


def dense(tensors):
    return {name: tensor.to_dense() for name, tensor in tensors.items()}


def test_exports_have_what_a_state_dict_has(train, tmp_path):
    for make in (Private, Sums):
        module = make()
        run = train(module, name=make.__name__)
        export(Path(run), "torch", file=tmp_path / f"{make.__name__}.pt")
        other = make()
        other.load_state_dict(torch.load(tmp_path / f"{make.__name__}.pt"))
        same(dict(other.state_dict()), dict(module.state_dict()))


def test_a_statistic_that_changes_its_shape_is_one_line(train):
    class Longer(Changing):
        def prepare(self):
            self.register_buffer("running_mean", torch.zeros(1))

        def change(self, images):
            self.running_mean = torch.zeros(len(self.running_mean) + 1)

        def use(self, images):
            return self.layer(images)

    with pytest.raises(
        UsageError, match=r"^model: Longer: buffer running_mean is of shape \(2,\) now, expected \(1,\) as before"
    ):
        train(Longer())


# Losses that are modules.


@pytest.mark.parametrize("make", [Margins, Centred])
def test_a_loss_is_trained_saved_and_resumed_as_part_of_the_model(train, make):
    loss, module = make(), mlp()
    run = train(module, loss, name="through")
    expected = plain(mlp(), make())
    same(tensors_of(module, loss), expected)
    assert not torch.equal(next(iter(loss.state_dict().values())), next(iter(make().state_dict().values())))
    tensors = mpidl.load(run).tensors
    own = {name: values for name, values in tensors.items() if name.startswith("loss.")}
    assert own.keys() == ({f"loss.{name}" for name in loss.state_dict()} if make is Margins else set())
    same({name: torch.as_tensor(values) for name, values in own.items()}, {n: loss.state_dict()[n[5:]] for n in own})
    again, other = make(), mlp()
    train(mlp(), make(), name="struck", steps=9)
    train(other, again, name="struck", resume=True)
    same(tensors_of(other, again), expected)


def test_a_loss_belongs_to_its_owner_too(train):
    loss, module = Margins().eval(), mlp()
    for _ in range(2):
        before = tensors_of(module, loss)
        train(module, loss, steps=4)
        assert all(not torch.equal(tensor, before[name]) for name, tensor in tensors_of(module, loss).items())
    assert not loss.training
    inputs, targets = next(iter(mpidl.Digits().open().train.in_turn([range(8)])))[:2]
    loss(module(torch.from_numpy(inputs)), torch.from_numpy(targets)).backward()
    assert loss.bias.grad.any()
    assert loss.bias.untyped_storage().nbytes() == 40


def test_a_loss_may_be_a_part_or_a_method_of_the_module_or_be_called_as_one_of_its_parts(train):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.loss = mlp(), Margins()

        def forward(self, images):
            return self.layers(images)

        def compute(self, outputs, targets):
            return self.loss(outputs, targets)

    part, method, apart = Own(), Own(), Own()
    train(part, part.loss)
    train(method, method.compute)
    same(tensors_of(part), tensors_of(method))
    assert TorchModel(apart, Margins()).layout.shapes.keys() >= {"loss_.bias", "loss.bias"}


def test_a_loss_with_parameters_is_in_one_stage():
    with pytest.raises(UsageError, match=r"^topology.stages: 2, but the loss has parameters to train, expected 1"):
        sections(TorchModel(mlp(), Margins()), 2)


# Modules that change what rules change.


@pytest.mark.parametrize(("algorithm", "noted"), [(mpidl.Downpour(), False), (mpidl.Downpour(wire_fetch="int8"), True)])
def test_what_shards_dont_see_is_said(train, capfd, algorithm, noted):
    train(Clamped(), algorithm=algorithm)
    line = "mpidl: model: it changes its parameter layer.weight itself, which its shards don't see"
    assert (line in capfd.readouterr().err) == noted


class Staged(torch.nn.Linear):
    """A module with a state of plain attributes, of which ``stage`` is also the name of a buffer."""

    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("stage", torch.zeros(1), persistent=False)
        self.read, self.sums = 0, [0.0, 0.0]

    def forward(self, inputs):
        if self.training:
            self.read, self.stage = self.read + 1, self.stage + 2
            self.sums = [self.sums[0] + 1.0, self.sums[1] - 1.0]
        return super().forward(inputs.flatten(1))

    def state(self):
        return {"stage": self.read, "sums": self.sums}

    def load_state(self, state):
        self.read, self.sums = state["stage"], state["sums"].tolist()


class StagedLoss(torch.nn.CrossEntropyLoss):
    calls = 0

    def forward(self, outputs, targets):
        self.calls += outputs.requires_grad
        return super().forward(outputs, targets)

    def state(self):
        return {"calls": self.calls}

    def load_state(self, state):
        self.calls = state["calls"]


class Nested(torch.nn.Sequential):
    """A module whose state has what it likes of the modules inside."""

    def state(self):
        return {"read": self[0].read}

    def load_state(self, state):
        self[0].read = state["read"]


@pytest.mark.parametrize(
    ("around", "sums"),
    [
        (lambda module: module, 13.0),
        (lambda module: torch.nn.Sequential(torch.nn.Sequential(module), torch.nn.Identity()), 13.0),
        (Nested, 4.0),
    ],
)
def test_the_state_of_a_module_and_of_a_loss(train, around, sums):
    train(around(Staged()), StagedLoss(), name="struck", steps=9)
    module, loss = Staged(), StagedLoss()
    train(around(module), loss, name="struck", steps=13, resume=True)
    assert (module.read, module.sums, module.stage.item(), loss.calls) == (13, [sums, -sums], 26.0, 13)


@pytest.mark.parametrize(
    ("state", "text"),
    [({"stage": None}, "has None as stage, expected numbers and arrays"), (3, "is an int, expected a mapping")],
)
def test_a_state_that_cannot_be_saved(train, state, text):
    module = Staged()
    module.state = lambda: state
    with pytest.raises(UsageError, match=f"^model: Staged: its state {text}"):
        train(module)
