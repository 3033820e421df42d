"""Modules as models: their tensors, their gradients, and what is said of those that can't be trained."""

import copy

import numpy as np
import pytest
import torch

from mpidl.data import Indexed
from mpidl.data.batch import Batch
from mpidl.errors import MpidlError, UsageError
from mpidl.nn.adaptation import ModelError
from mpidl.torch import TorchModel
from torch_modules import cnn, functional, mlp, transformer

RNG = np.random.default_rng(2)
BATCH = Batch(RNG.random((13, 64), np.float32), RNG.integers(0, 10, 13), number=4)


def gradients(module, loss=functional.cross_entropy, batch=BATCH):
    module.train()
    module.zero_grad()
    loss(module(torch.from_numpy(batch.inputs)), torch.from_numpy(batch.targets)).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("make", [mlp, cnn, transformer])
def test_the_gradient_is_the_modules(make):
    model = TorchModel(make(), "cross_entropy")
    expected = gradients(make())
    for _ in range(2):  # the second doesn't add to the first
        _, gradient = model.loss_and_gradient(BATCH)
        for name, view in model.layout.views(gradient).items():
            if name in expected:
                assert np.array_equal(view, expected[name].numpy()), name
    assert {tensor.name for tensor in model.layout} == set(expected) | {
        name for name in make().state_dict() if "running" in name
    }


def test_parameters_are_views_of_the_vector():
    model = TorchModel(mlp(), "cross_entropy")
    before = {name: each.clone() for name, each in model.module.state_dict().items()}
    vector = np.full(model.layout.size, 0.5, np.float32)
    model.parameters = vector
    assert all(bool((each == 0.5).all()) for each in model.module.parameters())
    vector[:] = np.concatenate([each.numpy().reshape(-1) for each in before.values()])
    assert all(torch.equal(each, before[name]) for name, each in model.module.state_dict().items())
    assert model.parameters is vector


def test_tied_weights_count_once():
    model = TorchModel(transformer(), "cross_entropy")
    assert model.aliases == {"again.weight": "rows.weight"}
    assert model.layout.size == sum(each.numel() for each in transformer().parameters())


def test_running_means_are_statistics_and_counters_stay_behind():
    model, plain = TorchModel(cnn(), "cross_entropy"), cnn()
    gradients(plain)
    (statistics,) = model.statistics
    before = model.parameters.copy()
    _, gradient = model.loss_and_gradient(BATCH)
    assert np.array_equal(model.parameters, before)  # the rule changes them, not the module
    model.parameters[statistics.start :] -= gradient[statistics.start :]
    for name, view in model.layout.views(model.parameters).items():
        if "running" in name:
            np.testing.assert_allclose(view, plain.state_dict()[name].numpy(), rtol=1e-6, atol=1e-7)
    assert {name: int(value) for name, value in model.buffers().items()} == {
        "norms.0.num_batches_tracked": 1, "norms.1.num_batches_tracked": 1,
    }  # fmt: skip


def test_what_others_change_of_statistics_meanwhile_is_no_part_of_the_gradient():
    """Workers that share the parameters in memory change them while this one computes."""

    def loss(outputs, targets):
        if disturbed.module.training:
            disturbed.parameters[disturbed.statistics[0].start :] *= 0.1
        return functional.cross_entropy(outputs, targets)

    undisturbed, disturbed = TorchModel(cnn(), "cross_entropy"), TorchModel(cnn(), loss)
    assert np.array_equal(disturbed.loss_and_gradient(BATCH)[1], undisturbed.loss_and_gradient(BATCH)[1])


def test_a_module_that_is_moved_goes_on_changing_statistics_and_counters(monkeypatch):
    def move(module, device):
        """Replace the buffers as a move to a GPU does."""
        for each in module.modules():
            for key, buffer in list(each.named_buffers(recurse=False)):
                setattr(each, key, buffer.clone())
        return module

    stays, given = (TorchModel(cnn(), "cross_entropy") for _ in range(2))
    monkeypatch.setattr(torch.nn.Module, "to", move)
    moved = given.on(np)
    moved.parameters = given.parameters.copy()
    for _ in range(2):
        for model in (stays, moved):
            model.parameters -= model.loss_and_gradient(BATCH)[1]
    assert np.array_equal(moved.parameters, stays.parameters)
    assert not np.array_equal(
        moved.parameters[moved.statistics[0].start :], given.parameters[moved.statistics[0].start :]
    )
    assert given.buffers() == stays.buffers()
    assert all(given.buffers().values())
    given.finish()
    assert int(given.module.state_dict()["norms.0.num_batches_tracked"]) == 2


def test_frozen_parameters_and_masks_are_constants():
    module = transformer()
    module.last.weight.requires_grad_(False)
    model = TorchModel(module, "cross_entropy")
    assert set(model.constants()) == {"last.weight", "mask"}
    values = {name: array + 1 for name, array in model.constants().items()}
    model.load_constants(values)
    assert np.array_equal(model.constants()["last.weight"], values["last.weight"])
    model.loss_and_gradient(BATCH)


@pytest.mark.parametrize("count", [2, 3, 13, 20])
def test_micro_batches_sum_to_the_batch(count):
    whole, cut = (TorchModel(mlp(dtype=torch.float64), "cross_entropy", micro_batches=k) for k in (1, count))
    expected_loss, expected = whole.loss_and_gradient(BATCH)
    loss, gradient = cut.loss_and_gradient(BATCH)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-14)
    assert loss == pytest.approx(expected_loss, rel=1e-12)


class Sentences:
    """Padded sequences of 1 to 7 values."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return np.arange(index % 7 + 1, dtype=np.float64) / 7, index % 2


def padded(samples):
    values = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(x) for x, _ in samples], batch_first=True)
    lengths = torch.tensor([len(x) for x, _ in samples])
    return {"values": values, "lengths": lengths}, torch.tensor([y for _, y in samples], dtype=torch.float64)


def elements(inputs, targets):
    return inputs["lengths"].sum()


class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.Linear(1, 1).double()

    def forward(self, values, lengths):
        inside = torch.arange(values.shape[1])[None] < lengths[:, None]
        return (self.cell(values[..., None])[..., 0] - values) * inside, lengths


def per_element(outputs, targets):
    errors, lengths = outputs
    return (errors.square().sum(1) * (1 + targets)).sum() / lengths.sum()


@pytest.mark.parametrize(("loss", "weight"), [(per_element, elements), (lambda o, t: o[0].sum(1).mean(), None)])
def test_micro_batches_of_collated_data(loss, weight):
    batch = Indexed(Sentences(), Sentences(), padded, weight).open().train.gather(np.arange(7, 12))
    expected_loss, expected = TorchModel(Sums(), loss).loss_and_gradient(batch)
    found_loss, found = TorchModel(Sums(), loss, micro_batches=3).loss_and_gradient(batch)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found_loss == pytest.approx(expected_loss, rel=1e-12)


def test_micro_batches_that_nothing_can_weigh():
    batch = Batch(BATCH.inputs, BATCH.targets, weight=40.0)
    text = "model.micro_batches: a batch of 13 samples has the weight 40, but the weights of its pieces are unknown"
    with pytest.raises(MpidlError, match=text):
        TorchModel(mlp(), "cross_entropy", micro_batches=2).loss_and_gradient(batch)
    unequal = Batch((BATCH.inputs, np.zeros(3)), BATCH.targets)
    with pytest.raises(ModelError, match="tensors of 3 and of 13 samples, expected tensors of one length"):
        TorchModel(mlp(), "cross_entropy", micro_batches=2).loss_and_gradient(unequal)


def test_a_parameter_that_takes_no_part_has_no_gradient():
    class Sometimes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.both = torch.nn.ModuleList([torch.nn.Linear(64, 10), torch.nn.Linear(64, 10)])
            self.which = 0

        def forward(self, inputs):
            self.which += 1
            return self.both[self.which % 2](inputs)

    model = TorchModel(Sometimes(), "cross_entropy")
    for number in (1, 0):
        views = model.layout.views(model.loss_and_gradient(BATCH)[1])
        assert views[f"both.{number}.weight"].any()
        assert not views[f"both.{1 - number}.weight"].any()


def test_inputs_are_one_or_several_arguments_or_named():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)

        def forward(self, one, other):
            return self.layer(one + other)

    loss = TorchModel(Sum(), "cross_entropy")
    half = BATCH.inputs / 2
    several = loss.loss_and_gradient(Batch((half, half), BATCH.targets))[0]
    named = loss.loss_and_gradient(Batch({"one": half, "other": torch.from_numpy(half)}, BATCH.targets))[0]
    assert several == named == pytest.approx(loss.loss_and_gradient(Batch((BATCH.inputs, half * 0), BATCH.targets))[0])


def test_autocast_computes_in_bfloat16():
    seen = []
    model = TorchModel(
        mlp(),
        lambda outputs, targets: (seen.append(outputs.dtype), functional.cross_entropy(outputs, targets))[1],
        autocast="bfloat16",
    )
    _, gradient = model.loss_and_gradient(BATCH)
    assert seen == [torch.bfloat16]
    assert gradient.dtype == np.float32
    expected = TorchModel(mlp(), "cross_entropy").loss_and_gradient(BATCH)[1]
    np.testing.assert_allclose(gradient, expected, atol=0.02 * np.abs(expected).max())


def test_compile_trains_the_compiled_module(monkeypatch):
    calls = []

    def compiled(module):
        return lambda inputs: (calls.append(1), module(inputs))[1]

    monkeypatch.setattr(torch, "compile", compiled)
    TorchModel(mlp(), "cross_entropy", compile=True).loss_and_gradient(BATCH)
    assert calls == [1]


def test_evaluation_is_without_dropout_and_with_the_vectors_statistics():
    model = TorchModel(mlp(dropout=0.9), "cross_entropy")
    assert model.evaluate(BATCH)[:2] == model.evaluate(BATCH)[:2]
    plain = mlp().eval()
    outputs = plain(torch.from_numpy(BATCH.inputs))
    expected = functional.cross_entropy(outputs, torch.from_numpy(BATCH.targets)).item() * 13
    loss, correct = model.evaluate(BATCH)[:2]
    assert loss == pytest.approx(expected, rel=1e-6)
    assert correct == int((outputs.argmax(1).numpy() == BATCH.targets).sum())


def half(module):
    return module.to(torch.bfloat16)


def mixed(module):
    module[1].to(torch.float64)
    return module


def frozen(module):
    return module.requires_grad_(False)


def tied_by_memory(module):
    module.append(torch.nn.Linear(10, 10, bias=False))
    module.append(torch.nn.Linear(10, 10, bias=False))
    module[-1].weight.data = module[-2].weight.data
    return module


COMPILED = "is compiled by torch.jit, expected"


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: torch.nn.ReLU(), "ReLU has no parameters, expected at least one to train"),
        (lambda: frozen(mlp()), "Sequential has frozen parameters only, expected at least one to train"),
        (lambda: half(mlp()), "parameter 1.weight is bfloat16, expected float32 or float64 .model.autocast computes"),
        (lambda: mixed(mlp()), "parameter 4.weight is float32, expected float64 as 1.weight"),
        (lambda: tied_by_memory(mlp()), "parameter 6.weight has the memory of 5.weight, expected one parameter"),
        (lambda: torch.jit.script(mlp()), f"{COMPILED} the module that it was made of; model.comp"),
        (lambda: torch.jit.trace(mlp(), torch.zeros(2, 64)), f"{COMPILED} the module that it was"),
        (lambda: torch.nn.Sequential(mlp(), torch.jit.script(mlp())), f"its module 1 {COMPILED}"),
    ],
)
def test_modules_that_cant_be_trained(make, found):
    with pytest.raises(UsageError, match=f"^model: .*{found}"):
        TorchModel(make(), "cross_entropy")


def test_a_frozen_module_of_torchscript_is_part_of_one():
    last = torch.nn.Linear(10, 10)
    plain = TorchModel(torch.nn.Sequential(frozen(mlp()), copy.deepcopy(last)), "cross_entropy")
    scripted = TorchModel(torch.nn.Sequential(torch.jit.script(frozen(mlp())), last), "cross_entropy")
    assert scripted.loss_and_gradient(BATCH)[0] == pytest.approx(plain.loss_and_gradient(BATCH)[0])


def test_unknown_losses():
    with pytest.raises(UsageError, match=r"model.loss: 'crossentropy'.*did you mean 'cross_entropy'"):
        TorchModel(mlp(), "crossentropy")
    with pytest.raises(UsageError, match="loss: found an int, expected a name or a function"):
        TorchModel(mlp(), 3)


class Replacing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, inputs):
        result = self.layer(inputs)
        self.layer.bias = torch.nn.Parameter(torch.zeros(10))
        return result


class Raising(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(63, 10)

    def forward(self, inputs):
        return self.layer(inputs)


def none(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def number(outputs, targets):
    return 3.0


@pytest.mark.parametrize(
    ("module", "loss", "found"),
    [
        (Replacing, "cross_entropy", "has replaced its parameter layer.bias, expected changes in place"),
        (Raising, "cross_entropy", "raised RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (mlp, none, r"the loss is of shape \(13,\), expected a tensor with one element"),
        (mlp, number, "the loss is a float, expected a tensor with one element"),
        (mlp, "mse_loss", r"outputs of shape \(13, 10\) and targets of shape \(13,\), expected the same for mse_loss"),
        (mlp, torch.nn.MSELoss(), r"outputs of shape .* and targets of shape .*, expected the same for MSELoss\(\)"),
        (mlp, torch.nn.BCEWithLogitsLoss(), r"targets of shape \(13,\), expected the same for BCEWithLogitsLoss\(\)"),
        (mlp, "multilabel_soft_margin_loss", r"targets of shape \(13,\), expected the same for multilabel_soft_margin"),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_a_batch_is_one_line(module, loss, found):
    model = TorchModel(module(), loss)
    if module is Replacing:
        model.loss_and_gradient(BATCH)
    with pytest.raises(ModelError, match=found) as error:
        model.loss_and_gradient(BATCH)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=found):
        model.rehearse(BATCH)
