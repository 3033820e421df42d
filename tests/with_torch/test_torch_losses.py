"""Losses of PyTorch and of one's own: the targets that they take, their terms, and labels that they ignore."""

import re
from functools import partial

import h5py
import numpy as np
import pytest
import torch

import mpidl
from mpidl.data import Batch
from mpidl.errors import MpidlError, UsageError
from mpidl.nn.adaptation import ModelError
from mpidl.torch import TorchModel
from rows import in_turn

nn, functional = torch.nn, torch.nn.functional
INPUTS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
IDS = np.arange(6) % 3
ROWS = np.eye(3, dtype=np.float32)[IDS]
IDS_OR_ROWS = r"int64 of shape \(6,\) or floats of the same, not {}, for {}"


class Probabilities(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(inputs).sigmoid()


@pytest.mark.parametrize(
    ("loss", "targets", "expected"),
    [
        (
            nn.BCEWithLogitsLoss(),
            IDS,
            r"outputs of shape \(6, 3\) and targets of shape \(6,\), expected the same for BCE",
        ),
        (nn.BCEWithLogitsLoss(), ROWS.astype(int), r"expected floats, not int64, for BCEWithLogitsLoss\(\)"),
        ("binary_cross_entropy", ROWS.astype(int), "expected floats, not int64, for binary_cross_entropy"),
        (nn.HuberLoss(), ROWS.astype(int), r"expected floats, not int64, for HuberLoss\(\)"),
        ("kl_div", ROWS[:, :1], r"targets of shape \(6, 1\), expected the same for kl_div"),
        (nn.CrossEntropyLoss(), IDS.astype(np.float32), IDS_OR_ROWS.format("float32", r"CrossEntropyLoss\(\)")),
        (nn.CrossEntropyLoss(), IDS[:, None], IDS_OR_ROWS.format("int64", r"CrossEntropyLoss\(\)")),
        ("cross_entropy", ROWS.astype(int), IDS_OR_ROWS.format("int64", "cross_entropy")),
        ("cross_entropy", torch.tensor(IDS, dtype=torch.int32), IDS_OR_ROWS.format("int32", "cross_entropy")),
        (nn.NLLLoss(), ROWS, r"expected int64 of shape \(6,\), not float32, for NLLLoss\(\)"),
    ],
)
def test_targets_that_a_loss_can_not_take_are_one_line(loss, targets, expected):
    model = TorchModel(Probabilities(), loss)
    with pytest.raises(ModelError, match=expected):
        model.loss_and_gradient(Batch(INPUTS, targets))
    with pytest.raises(UsageError, match=expected) as caught:
        model.rehearse(Batch(INPUTS, targets))
    assert caught.value.alone


class OfTokens(nn.CrossEntropyLoss):
    def forward(self, outputs, targets):
        return super().forward(outputs.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(
    ("loss", "inputs", "targets"),
    [
        ("cross_entropy", INPUTS, IDS),
        ("cross_entropy", INPUTS, torch.tensor(IDS, dtype=torch.uint8)),
        ("cross_entropy", INPUTS, ROWS),
        (OfTokens(), INPUTS.reshape(2, 3, 4), IDS.reshape(2, 3)),
        ("multilabel_soft_margin_loss", INPUTS, ROWS.astype(int)),
        (nn.MSELoss(), INPUTS, ROWS.astype(int)),
    ],
)
def test_other_targets_are_taken(loss, inputs, targets):
    assert np.isfinite(TorchModel(Probabilities(), loss).loss_and_gradient(Batch(inputs, targets))[0])


def test_a_network_names_the_place_of_its_loss(tmp_path):
    network = mpidl.Network([mpidl.nn.Dense(3)], (4,), loss="mean_squared_error")
    assert isinstance(network.loss, mpidl.nn.MeanSquaredError)
    with pytest.raises(
        UsageError, match=r"^model.loss: is for a torch.nn.Module, found a Network; Network\(..., loss="
    ):
        mpidl.train(network, mpidl.Arrays((INPUTS, IDS), (INPUTS, IDS)), loss="cross_entropy", dir=tmp_path)


RNG = np.random.default_rng(5)
FEATURES, VALUES = RNG.random((21, 3)).astype(np.float32), RNG.random((21, 2)).astype(np.float32)
BATCH = Batch(FEATURES[:8], VALUES[:8])


def terms(outputs, targets):
    return {"data": (outputs - targets).square().mean(), "physics": outputs.abs().mean()}


def total(outputs, targets):
    found = terms(outputs, targets)
    return found["data"] + 0.25 * found["physics"]


def perceptron():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_gradient_is_that_of_the_weighted_sum(micro_batches):
    found = TorchModel(perceptron(), terms, micro_batches=micro_batches, loss_weights={"physics": 0.25})
    expected = TorchModel(perceptron(), total, micro_batches=micro_batches)
    loss, gradient = found.loss_and_gradient(BATCH)
    assert loss == pytest.approx(expected.loss_and_gradient(BATCH)[0], rel=1e-6)
    np.testing.assert_allclose(gradient, expected.loss_and_gradient(BATCH)[1], rtol=1e-6)


def test_evaluations_report_each_term(tmp_path):
    data, given = mpidl.Arrays((FEATURES, VALUES), (FEATURES, VALUES)), perceptron()
    keywords = {"loss": terms, "batch": 7, "epochs": 2, "dir": tmp_path, "loss_weights": {"physics": 0.25}}
    summary = mpidl.train(given, data, metrics=["mean_squared_error"], device="cpu", **keywords)
    with torch.no_grad():
        found = terms(given(torch.from_numpy(FEATURES)), torch.from_numpy(VALUES))
    for name, value in found.items():
        assert summary[f"test_{name}"] == pytest.approx(float(value), rel=1e-5)
    assert summary["test_mean_squared_error"] == pytest.approx(summary["test_data"], rel=1e-5)
    assert summary["test_loss"] == pytest.approx(summary["test_data"] + 0.25 * summary["test_physics"], rel=1e-5)
    again = mpidl.evaluate(tmp_path / "run", perceptron(), data, loss=terms)
    assert again["test_physics"] == pytest.approx(summary["test_physics"], rel=1e-6)


def test_what_is_wrong_with_terms(tmp_path):
    with pytest.raises(MpidlError, match=re.escape("loss_weights: phisics: the loss has no such term, did you mean")):
        TorchModel(perceptron(), terms, loss_weights={"phisics": 1.0}).loss_and_gradient(BATCH)
    with pytest.raises(ModelError, match=r"the term a of the loss is of shape \(8, 2\), expected a tensor with one"):
        TorchModel(perceptron(), lambda outputs, targets: {"a": outputs - targets}).loss_and_gradient(BATCH)
    data = mpidl.Arrays((FEATURES, VALUES), (FEATURES, VALUES))
    with pytest.raises(UsageError, match=r"expected a tensor with one element, the batch's mean"):
        mpidl.train(perceptron(), data, loss=lambda outputs, targets: {}, dir=tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["loss", "accuracy", "mean_squared_error"])
def test_a_term_has_a_name_of_its_own(tmp_path, name):
    def loss(outputs, targets):
        return {name: (outputs - targets).square().mean()}

    data, keywords = mpidl.Arrays((FEATURES, VALUES), (FEATURES, VALUES)), {"metrics": ["mean_squared_error"]}
    with pytest.raises(UsageError, match=rf"^model\.loss: a term has the name {name}, which is that of another figure"):
        mpidl.train(perceptron(), data, loss=loss, dir=tmp_path, device="cpu", **keywords)


def test_weights_of_a_loss_without_terms(tmp_path):
    data, keywords = (
        mpidl.Arrays((FEATURES, VALUES), (FEATURES, VALUES)),
        {"loss": "mse_loss", "loss_weights": {"physics": 0.5}},
    )
    with pytest.raises(UsageError, match="loss_weights: physics: the loss has no such term: it is no mapping"):
        mpidl.train(perceptron(), data, dir=tmp_path, device="cpu", **keywords)


def test_terms_that_come_and_go(tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(outputs)
        return terms(outputs, targets) | ({"late": outputs.mean()} if len(calls) > 9 else {})

    data = mpidl.Arrays((FEATURES, VALUES), (FEATURES, VALUES))
    with pytest.raises(MpidlError, match=r"^model\.loss: found 3 terms, where it had 2; expected the same ones"):
        mpidl.train(perceptron(), data, loss=loss, batch=7, epochs=4, dir=tmp_path, device="cpu")


def test_evaluations_report_their_own_terms():
    given = perceptron()
    model = TorchModel(given, lambda *both: terms(*both) if given.training else terms(*both)["data"])
    model.loss_and_gradient(BATCH)
    assert (list(model.evaluate(BATCH).terms), model.terms) == ([], ())


functional, nn = torch.nn.functional, torch.nn


def samples(ignored=-100, tokens=()):
    """Return inputs (24, ..., 4) and labels (24, ...) of 3 classes, of which the first ones are all ignored."""
    random = np.random.default_rng(1)
    inputs, labels = random.normal(size=(24, *tokens, 4)), random.integers(0, 3, (24, *tokens))
    labels[random.random(labels.shape) < np.linspace(1, 0, 24).reshape(-1, *[1] * len(tokens))] = ignored
    labels[:7] = ignored
    return inputs, labels


class Tokens(nn.Module):
    """A linear layer whose outputs have the classes along the second axis."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3).double()

    def forward(self, inputs):
        return self.layer(inputs).movedim(-1, 1)


def own_loss(outputs, targets, ignore_index=-1):
    return functional.cross_entropy(outputs, targets, ignore_index=ignore_index)


CASES = {
    "module": (nn.CrossEntropyLoss(), -100),
    "name": ("cross_entropy", -100),
    "another": (nn.CrossEntropyLoss(ignore_index=-1), -1),
    "partial": (partial(functional.cross_entropy, ignore_index=-1), -1),
    "own": (own_loss, -1),
}


@pytest.mark.parametrize(
    ("case", "micro_batches", "tokens"), in_turn(CASES, [(1, ()), (3, (5,)), (1, (5,)), (3, ())], 2)
)
def test_a_mean_is_over_the_labels_that_count(tmp_path, monkeypatch, case, micro_batches, tokens):
    """As in a plain loop. The evaluation is by parts of 5 samples, of which the first one has no label that counts."""
    monkeypatch.setattr("mpidl.nn.evaluation.BATCH", 5)
    loss, ignored = CASES[case]
    inputs, labels = samples(ignored, tokens)
    module, plain = Tokens(), Tokens()
    summary = mpidl.train(
        module, mpidl.Arrays((inputs, labels), (inputs, labels)), loss=loss, micro_batches=micro_batches,
        rule=mpidl.Sgd(0.5), batch=24, epochs=2, dir=tmp_path, device="cpu",
    )  # fmt: skip
    mean = functional.cross_entropy if loss == "cross_entropy" else loss
    tensors, optimiser = (torch.from_numpy(inputs), torch.from_numpy(labels)), torch.optim.SGD(plain.parameters(), 0.5)
    for _ in range(2):
        optimiser.zero_grad()
        mean(plain(tensors[0]), tensors[1]).backward()
        optimiser.step()
    torch.testing.assert_close(module.layer.weight, plain.layer.weight, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert summary["test_loss"] == pytest.approx(mean(plain(tensors[0]), tensors[1]).item(), rel=1e-9)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), lambda outputs, targets: outputs.mean()], ids=["another", "none"]
)
def test_labels_below_0_that_the_loss_does_not_ignore_are_one_line(tmp_path, loss):
    inputs, labels = samples(-1)
    expected = r"^data: train: label -1 at index 0, expected 0 to 2, or a loss whose ignore_index this is$"
    with pytest.raises(UsageError, match=expected) as caught:
        mpidl.train(Tokens(), mpidl.Arrays((inputs, labels), (inputs, labels)), loss=loss, epochs=1, dir=tmp_path)
    assert caught.value.alone


@pytest.mark.parametrize("in_file", [False, True])
def test_a_network_ignores_no_label(tmp_path, in_file):
    inputs, labels = samples()
    network = mpidl.Network([mpidl.nn.Dense(3)], (4,))
    train, test = (inputs, np.arange(24) % 3), (inputs, labels)
    data = mpidl.Arrays(train, test)
    if in_file:
        with h5py.File(tmp_path / "data.h5", "w") as file:
            for name, (x, y) in (("train", train), ("test", test)):
                file[f"{name}/x"], file[f"{name}/y"] = x, y
        data = mpidl.data.Hdf5(str(tmp_path / "data.h5"))
    with pytest.raises(UsageError, match=r"data: test: label -100 at index 0, expected 0 to 2, or a loss"):
        mpidl.train(network, data, epochs=1, dir=tmp_path)
    with pytest.raises(UsageError, match=r"data: labels -1 to 2, the last layer has 3 units"):
        network.loss_and_gradient(mpidl.Batch(inputs, np.maximum(labels, -1)))
