"""After training, and whenever another model takes it over, a module is its owner's again."""

import os
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import mpidl
from mpidl.data.batch import Batch
from mpidl.errors import MpidlError, UsageError
from mpidl.runs.evaluate import predict
from mpidl.torch import TorchModel
from torch_modules import cnn, functional, mlp, transformer

DIGITS = mpidl.Digits().open().train.gather(np.arange(64))
INPUTS, TARGETS = torch.from_numpy(DIGITS.inputs), torch.from_numpy(DIGITS.targets)


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a module for a few steps."""

    def run(module, **options):
        options = {"loss": "cross_entropy", "steps": 4, "batch": 32, "rule": mpidl.Sgd(0.1), "dir": tmp_path} | options
        return mpidl.train(module, mpidl.Digits(), **options)

    return run


def loss_of(module):
    return functional.cross_entropy(module(INPUTS), TARGETS)


def assert_owned(module):
    """Assert that a module is like one that mpidl never saw, and that PyTorch trains it on."""
    tensors = [*module.parameters(), *module.buffers()]
    for each in tensors:
        assert each.untyped_storage().nbytes() == each.numel() * each.element_size()
        assert each.is_contiguous()
    assert len({each.data_ptr() for each in tensors}) == len(tensors)
    module.zero_grad()
    loss_of(module).backward()
    assert all(each.grad is not None and each.grad.any() for each in module.parameters() if each.requires_grad)
    for optimiser in (
        torch.optim.Adam(module.parameters(), lr=1e-3),
        torch.optim.LBFGS(module.parameters(), max_iter=3, line_search_fn="strong_wolfe"),
    ):

        def closure(optimiser=optimiser):
            optimiser.zero_grad()
            loss = loss_of(module)
            loss.backward()
            return loss

        before, loss = [each.clone() for each in module.parameters()], loss_of(module).item()
        optimiser.step(closure)
        moved = [not torch.equal(each, old) for each, old in zip(module.parameters(), before, strict=True)]
        assert all(moved)
        assert loss_of(module).item() < loss


@pytest.mark.parametrize("make", [mlp, cnn, transformer])
def test_a_trained_module_is_trained_again_by_mpidl_and_by_pytorch(train, make):
    module, twice = make(), make()
    train(module)
    train(module)
    for _ in range(2):
        train(TorchModel(twice, "cross_entropy"), loss=None)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, twice.state_dict()[name]), name
        assert tensor.numel() == 1 or name == "mask" or not torch.equal(tensor, make().state_dict()[name]), name
    assert_owned(module)


def test_one_model_trains_twice():
    """Its vector is made anew of what the module has by then."""
    model, other = (TorchModel(mlp(), "cross_entropy") for _ in range(2))
    for each in (model, other):
        each.parameters -= each.loss_and_gradient(DIGITS)[1]
    model.finish()
    model.finish()
    with torch.no_grad():
        for each in (*model.module.parameters(), *other.module.parameters()):
            each *= 0.9
    assert np.array_equal(model.loss_and_gradient(DIGITS)[1], other.loss_and_gradient(DIGITS)[1])
    assert np.array_equal(model.parameters, other.parameters)


def evaluated(train, module):
    summary = train(module)
    mpidl.evaluate(summary["run_dir"], module, mpidl.Digits())


def resumed(train, module):
    train(module, name="same")
    train(module, name="same", steps=8, resume=True)
    train(module, name="same", steps=8, resume=True)


def frozen_and_then_whole(train, module):
    module[1].requires_grad_(False)
    train(module)
    module.requires_grad_(True)
    train(module)


def by_two_algorithms(train, module):
    train(module, algorithm=mpidl.Downpour())
    train(module, algorithm=mpidl.Sandblaster(), rule=None)


def in_shared_memory(train, module):
    train(module, algorithm=mpidl.algorithms.Hogwild())


def with_servers(train, module):
    train(module, servers=2)


def a_part_and_the_whole(train, module):
    train(torch.nn.Sequential(*list(module)[:2]))
    train(module)


def two_models(train, module):
    first, second = TorchModel(module, "cross_entropy"), TorchModel(module, "cross_entropy")
    before = first.parameters.copy()
    for each in (first, second, first):
        each.parameters -= 0.1 * each.loss_and_gradient(DIGITS)[1]
    assert not np.array_equal(first.parameters, before)
    first.finish()


def interrupted(train, module):
    def stop(outputs, targets):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(module, loss=stop)


def signalled(train, module):
    numbers = iter(range(1000))

    def loss(outputs, targets):
        if next(numbers) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return functional.cross_entropy(outputs, targets)

    assert train(module, loss=loss, steps=400, on_interrupt="return")["interrupted"]
    numbers = iter(range(1000))
    with pytest.raises(SystemExit):
        train(module, loss=loss, steps=400)


def failed(train, module):
    losses = iter([1.0, 1.0, 1.0, 1.0])

    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets) * next(losses)

    with pytest.raises(MpidlError, match="StopIteration"):
        train(module, loss=loss)


def refused(train, module):
    with pytest.raises(UsageError, match="nonsense"):
        train(module, groups=[{"match": "*", "frozen": True}, {"match": "nonsense"}])


def diverged(train, module):
    values = module.state_dict()
    values = {name: tensor.clone() for name, tensor in values.items()}
    with pytest.raises(MpidlError, match="loss"):
        train(module, rule=mpidl.Sgd(1e30), steps=40)
    module.load_state_dict(values)


WAYS = [
    *(evaluated, resumed, frozen_and_then_whole, by_two_algorithms, in_shared_memory, with_servers),
    *(a_part_and_the_whole, two_models, interrupted, signalled, failed, refused, diverged),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_happened_the_module_is_its_owners(train, way):
    module = mlp()
    module[3].eval()
    way(train, module)
    assert [each.training for each in module] == [True, True, True, False, True]
    assert all(each.requires_grad for each in module.parameters())
    assert_owned(module)


def test_modes_flags_and_gradients_are_those_of_before(train):
    module = mlp().eval()
    module[1].bias.requires_grad_(False)
    train(module, groups=[{"match": "4.weight", "frozen": True}])
    assert not any(each.training for each in module.modules())
    assert [name for name, each in module.named_parameters() if not each.requires_grad] == ["1.bias"]
    assert all(each.grad is None for each in module.parameters())


def test_a_users_hooks_stay_and_see_gradients(train):
    module, seen = mlp(), []
    module[1].weight.register_hook(lambda gradient: seen.append("tensor"))
    module[4].weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad is not None))
    module.register_forward_hook(lambda *_: seen.append("forward"))
    train(module)
    assert {"tensor", True, "forward"} <= set(seen)
    seen.clear()
    loss_of(module).backward()
    assert set(seen) == {"tensor", True, "forward"}
    assert module[4].weight.grad is not None


def test_pytorch_may_compute_gradients_while_a_model_has_the_module():
    model = TorchModel(mlp(), "cross_entropy")
    expected = model.loss_and_gradient(DIGITS)[1].copy()
    loss_of(model.module).backward()
    given = torch.cat([each.grad.reshape(-1) for each in model.module.parameters()])
    np.testing.assert_allclose(given.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert np.array_equal(model.loss_and_gradient(DIGITS)[1], expected)


def test_tied_parameters_stay_tied_and_files_can_be_saved(train, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    module = transformer()
    train(module)
    assert module.again.weight is module.rows.weight
    safetensors.save_model(module, tmp_path / "module.safetensors")
    other = transformer(seed=1)
    safetensors.load_model(other, tmp_path / "module.safetensors")
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in module.state_dict().items())
    torch.save(module, tmp_path / "module.pt")
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    assert torch.equal(loaded.last.weight, module.last.weight)


def test_the_order_of_memory_stays(train):
    module = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 8)), torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten())
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Unflatten(1, (1, 8, 8)), *module[1:])
    module.append(torch.nn.Linear(144, 10)).to(memory_format=torch.channels_last)
    module[4].weight.data = torch.randn(144, 10).mT
    strides = [each.stride() for each in module.parameters()]
    assert strides[2] == (1, 10)
    train(module)
    assert [each.stride() for each in module.parameters()] == strides
    assert module[2].weight.is_contiguous(memory_format=torch.channels_last)


class Unchangeable(dict):
    """A configuration as some packages have it."""

    def update(self, *values):
        raise TypeError("can't be changed")

    def clear(self):
        raise TypeError("can't be changed")


class Moody(torch.nn.Module):
    """Changes itself in every way in each forward pass, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.layer, self.teacher = torch.nn.Linear(64, 10), torch.nn.Linear(64, 10).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(10)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.calls, self.seen, self.table, self.config = 0, [], {}, Unchangeable(width=10)

    def forward(self, inputs):
        self.calls += 1
        self.seen.append(len(inputs))
        self.table[len(self.seen)] = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002
        self.scale = 0.9 * self.scale + 0.1 * inputs.abs().mean()
        self.total += inputs.double().sum()
        self.hidden[1] += 1
        with torch.no_grad():
            self.layer.weight.clamp_(-0.01, 0.01)
            for mine, other in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
                mine.lerp_(other, 0.1)
        return self.norm(self.layer(inputs)) * self.scale


class Drawing:
    """Samples of whom some random numbers are drawn."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        value = random.random() + np.random.rand()  # noqa: NPY002
        return torch.rand(64) + value, index % 10


def described(module):
    return (
        {name: tensor.clone() for name, tensor in [*module.named_parameters(), *module.named_buffers()]},
        (module.calls, list(module.seen), dict(module.table), [each.training for each in module.modules()]),
        {
            "python": hash(random.getstate()),
            "numpy": repr(np.random.get_state()),  # noqa: NPY002
            "torch": hash(tuple(torch.get_rng_state().tolist())),
        },
    )


@pytest.mark.parametrize("mode", [True, False])
def test_the_rehearsal_leaves_no_trace(tmp_path, monkeypatch, mode):
    from mpidl.runs import one_process

    torch.manual_seed(0)
    module, found = Moody().train(mode), []
    before = described(module)
    monkeypatch.setattr(one_process, "rehearse_shard", lambda placed: found.append(described(module)))
    data = mpidl.Indexed(Drawing(), Drawing())
    monkeypatch.setattr(one_process, "Recorder", lambda *_, **__: pytest.fail("enough"))
    with pytest.raises(pytest.fail.Exception, match="enough"):
        mpidl.train(module, data, loss="cross_entropy", steps=2, dir=tmp_path, metrics=["f1"])
    (after,) = found
    assert after[0].keys() == before[0].keys()
    for name, tensor in before[0].items():
        assert torch.equal(after[0][name], tensor), name
    assert after[1:] == before[1:]


def test_a_rehearsal_that_fails_leaves_no_trace_either():
    module = Moody()
    before = described(module)[0]
    with pytest.raises(UsageError):
        TorchModel(module, "cross_entropy").rehearse(Batch(DIGITS.inputs, DIGITS.targets + 100))
    assert all(torch.equal(before[name], each) for name, each in described(module)[0].items())
    assert not module.seen


def test_an_evaluation_has_the_loss_of_the_last_training(tmp_path):
    """Also if that is an object, which no file of the run has."""
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
    data = mpidl.Arrays((inputs, labels), (inputs, labels), validation=(inputs, labels))
    module, loss = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss(label_smoothing=0.5)
    summary = mpidl.train(module, data, loss=loss, batch=8, epochs=1, dir=tmp_path, device="cpu")
    found = mpidl.evaluate(summary["run_dir"], module, data, step="best")
    assert found["test_loss"] == pytest.approx(loss(module(torch.from_numpy(inputs)), torch.from_numpy(labels)).item())
    with pytest.raises(mpidl.UsageError, match=r"^model.loss: none, expected one for the module Linear"):
        mpidl.evaluate(summary["run_dir"], torch.nn.Linear(4, 3), data)
    with pytest.raises(UsageError, match=r"the model is an object of a Python script, which predict doesn't have"):
        predict(Path(summary["run_dir"]), "test", tmp_path / "outputs.h5")


def test_threads_lend_modules_at_the_same_time():
    batch = Batch(np.ones((2, 3), np.float32), np.ones((2, 1), np.float32))

    def lend(_):
        for _ in range(30):
            TorchModel(torch.nn.Linear(3, 1), "mse_loss").loss_and_gradient(batch)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lend, range(4)))
    finally:
        sys.setswitchinterval(interval)
