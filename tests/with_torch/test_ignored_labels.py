"""Labels that a loss ignores, in arrays: means are over the labels that count, in whatever parts they are computed."""

from functools import partial

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.errors import UsageError  # noqa: E402
from rows import in_turn  # noqa: E402

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


def own(outputs, targets, ignore_index=-1):
    return functional.cross_entropy(outputs, targets, ignore_index=ignore_index)


CASES = {
    "module": (nn.CrossEntropyLoss(), -100),
    "name": ("cross_entropy", -100),
    "another": (nn.CrossEntropyLoss(ignore_index=-1), -1),
    "partial": (partial(functional.cross_entropy, ignore_index=-1), -1),
    "own": (own, -1),
}


@pytest.mark.parametrize(
    ("case", "micro_batches", "tokens"), in_turn(CASES, [(1, ()), (3, (5,)), (1, (5,)), (3, ())], 2)
)
def test_a_mean_is_over_the_labels_that_count(tmp_path, monkeypatch, case, micro_batches, tokens):
    """As in a plain loop. The evaluation is by parts of 5 samples, of which the first one has no label that counts."""
    monkeypatch.setattr("mpidl.nn.model.BATCH", 5)
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
