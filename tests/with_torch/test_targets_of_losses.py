"""Targets of the wrong dtype or shape for a loss of PyTorch are one line."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.data import Batch  # noqa: E402
from mpidl.errors import UsageError  # noqa: E402
from mpidl.nn.adaptation import ModelError  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402

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
