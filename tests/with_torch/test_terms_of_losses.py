"""Losses of several terms: their weighted sum is trained on, and evaluations report each."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.data.batch import Batch  # noqa: E402
from mpidl.errors import MpidlError, UsageError  # noqa: E402
from mpidl.nn.adaptation import ModelError  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402

RNG = np.random.default_rng(5)
INPUTS, TARGETS = RNG.random((21, 3)).astype(np.float32), RNG.random((21, 2)).astype(np.float32)
BATCH = Batch(INPUTS[:8], TARGETS[:8])


def terms(outputs, targets):
    return {"data": (outputs - targets).square().mean(), "physics": outputs.abs().mean()}


def total(outputs, targets):
    found = terms(outputs, targets)
    return found["data"] + 0.25 * found["physics"]


def module():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_gradient_is_that_of_the_weighted_sum(micro_batches):
    found = TorchModel(module(), terms, micro_batches=micro_batches, loss_weights={"physics": 0.25})
    expected = TorchModel(module(), total, micro_batches=micro_batches)
    loss, gradient = found.loss_and_gradient(BATCH)
    assert loss == pytest.approx(expected.loss_and_gradient(BATCH)[0], rel=1e-6)
    np.testing.assert_allclose(gradient, expected.loss_and_gradient(BATCH)[1], rtol=1e-6)


def test_evaluations_report_each_term(tmp_path):
    data, given = mpidl.Arrays((INPUTS, TARGETS), (INPUTS, TARGETS)), module()
    keywords = {"loss": terms, "batch": 7, "epochs": 2, "dir": tmp_path, "loss_weights": {"physics": 0.25}}
    summary = mpidl.train(given, data, metrics=["mean_squared_error"], device="cpu", **keywords)
    with torch.no_grad():
        found = terms(given(torch.from_numpy(INPUTS)), torch.from_numpy(TARGETS))
    for name, value in found.items():
        assert summary[f"test_{name}"] == pytest.approx(float(value), rel=1e-5)
    assert summary["test_mean_squared_error"] == pytest.approx(summary["test_data"], rel=1e-5)
    assert summary["test_loss"] == pytest.approx(summary["test_data"] + 0.25 * summary["test_physics"], rel=1e-5)
    again = mpidl.evaluate(tmp_path / "run", module(), data, loss=terms)
    assert again["test_physics"] == pytest.approx(summary["test_physics"], rel=1e-6)


def test_what_is_wrong_with_terms(tmp_path):
    with pytest.raises(MpidlError, match=re.escape("loss_weights: phisics: the loss has no such term, did you mean")):
        TorchModel(module(), terms, loss_weights={"phisics": 1.0}).loss_and_gradient(BATCH)
    with pytest.raises(ModelError, match=r"the term a of the loss is of shape \(8, 2\), expected a tensor with one"):
        TorchModel(module(), lambda outputs, targets: {"a": outputs - targets}).loss_and_gradient(BATCH)
    data = mpidl.Arrays((INPUTS, TARGETS), (INPUTS, TARGETS))
    with pytest.raises(UsageError, match=r"expected a tensor with one element, the batch's mean"):
        mpidl.train(module(), data, loss=lambda outputs, targets: {}, dir=tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["loss", "accuracy", "mean_squared_error"])
def test_a_term_has_a_name_of_its_own(tmp_path, name):
    def loss(outputs, targets):
        return {name: (outputs - targets).square().mean()}

    data, keywords = mpidl.Arrays((INPUTS, TARGETS), (INPUTS, TARGETS)), {"metrics": ["mean_squared_error"]}
    with pytest.raises(UsageError, match=rf"^model\.loss: a term has the name {name}, which is that of another figure"):
        mpidl.train(module(), data, loss=loss, dir=tmp_path, device="cpu", **keywords)


def test_weights_of_a_loss_without_terms(tmp_path):
    data, keywords = (
        mpidl.Arrays((INPUTS, TARGETS), (INPUTS, TARGETS)),
        {"loss": "mse_loss", "loss_weights": {"physics": 0.5}},
    )
    with pytest.raises(UsageError, match="loss_weights: physics: the loss has no such term: it is no mapping"):
        mpidl.train(module(), data, dir=tmp_path, device="cpu", **keywords)


def test_terms_that_come_and_go(tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(outputs)
        return terms(outputs, targets) | ({"late": outputs.mean()} if len(calls) > 9 else {})

    data = mpidl.Arrays((INPUTS, TARGETS), (INPUTS, TARGETS))
    with pytest.raises(MpidlError, match=r"^model\.loss: found 3 terms, where it had 2; expected the same ones"):
        mpidl.train(module(), data, loss=loss, batch=7, epochs=4, dir=tmp_path, device="cpu")


def test_evaluations_report_their_own_terms():
    given = module()
    model = TorchModel(given, lambda *both: terms(*both) if given.training else terms(*both)["data"])
    model.loss_and_gradient(BATCH)
    assert (list(model.evaluate(BATCH).terms), model.terms) == ([], ())
