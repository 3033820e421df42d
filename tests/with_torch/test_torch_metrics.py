"""Metrics of PyTorch modules, which count what the loss counts."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

import mpidl
from mpidl.data import Arrays, Batch, Indexed
from mpidl.metrics.metric import on_host

functional, nn = torch.nn.functional, torch.nn
WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0])


def test_metrics_of_a_module_are_those_of_its_outputs(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 7)).astype(np.float32)
    labels = inputs[:, :6].argmax(axis=1)
    data = Arrays((inputs[:200], labels[:200]), (inputs[200:], labels[200:]))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
    names = ["f1", "top5_accuracy", "auc"]
    summary = mpidl.train(
        module,
        data,
        loss="cross_entropy",
        metrics=names,
        validation=0.1,
        epochs=3,
        batch=16,
        dir=tmp_path,
        device="cpu",
    )
    with torch.no_grad():
        outputs = module.eval()(torch.from_numpy(inputs[200:])).numpy()
    tested = labels[200:]
    assert summary["test_f1"] == pytest.approx(oracle.f1_score(tested, outputs.argmax(axis=1), average="macro"))
    expected = oracle.top_k_accuracy_score(tested, outputs, k=5, labels=range(6))
    assert summary["test_top5_accuracy"] == pytest.approx(expected)
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    expected = oracle.roc_auc_score(tested, probabilities, multi_class="ovr")
    assert summary["test_auc"] == pytest.approx(expected, abs=0.01)
    assert summary["best_step"] is not None


def segmented(samples=12, ignored=255, seed=0):
    """Return images and labels of 4 classes, of which more and more are ignored from sample to sample."""
    random = np.random.default_rng(seed)
    images = random.normal(size=(samples, 3, 5, 5))
    labels = random.integers(0, 4, (samples, 5, 5))
    labels[random.random(labels.shape) < np.linspace(0, 1, samples)[:, None, None]] = ignored
    labels[-1] = ignored  # nothing counts
    return images, labels


def segmenting():
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3, padding=1).double()


LEFT_OUT = {
    "module": nn.CrossEntropyLoss(ignore_index=255),
    "smoothed": nn.CrossEntropyLoss(ignore_index=255, label_smoothing=0.2),
    "weighed": nn.CrossEntropyLoss(WEIGHTS.double(), ignore_index=255),
    "sum": nn.CrossEntropyLoss(ignore_index=255, reduction="sum"),
    "partial": partial(functional.cross_entropy, ignore_index=255, weight=WEIGHTS.double()),
    "partial of partial": partial(partial(functional.cross_entropy, reduction="sum"), ignore_index=255),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_the_loss_leaves_out_metrics_leave_out(tmp_path, monkeypatch, name):
    """The figures are those of the whole split at once, in however many batches it is evaluated."""
    monkeypatch.setattr("mpidl.nn.evaluation.BATCH", 5)
    loss, (images, labels) = LEFT_OUT[name], segmented()
    given = list(zip(images, labels, strict=True))
    module = segmenting()
    summary = mpidl.train(
        module, Indexed(given, given), loss=loss, metrics=["f1", "top5_accuracy", "auc"], rule=mpidl.Sgd(1e-30),
        steps=1, batch=4, dir=tmp_path, device="cpu",
    )  # fmt: skip
    with torch.no_grad():
        outputs, targets = segmenting()(torch.from_numpy(images)), torch.from_numpy(labels)
    counted = targets != 255
    if name in ("weighed", "partial"):
        counted &= targets != 2  # its weight is 0
    expected = loss(outputs, targets).item() / (int(counted.sum()) if "sum" in name or "of" in name else 1)
    rows, actual = outputs.movedim(1, -1)[counted], targets[counted]
    predicted = rows.argmax(1)
    assert summary["test_loss"] == pytest.approx(expected, rel=1e-9)
    assert summary["test_accuracy"] == pytest.approx(oracle.accuracy_score(actual, predicted), rel=1e-9)
    # Classes that are neither in targets nor predictions are left out.
    assert summary["test_f1"] == pytest.approx(oracle.f1_score(actual, predicted, average="macro"), rel=1e-9)
    assert summary["test_top5_accuracy"] == 1


def test_a_batch_in_which_nothing_counts_changes_nothing(tmp_path):
    images, labels = segmented(8)
    labels[:] = 255
    labels[2, 0] = 1
    loss, module, plain = LEFT_OUT["module"], segmenting(), segmenting()
    data = Indexed(list(zip(images, labels, strict=True)), list(zip(images, labels, strict=True)))
    summary = mpidl.train(
        module, data, loss=loss, rule=mpidl.Sgd(0.1), epochs=1, batch=2, portion=8, dir=tmp_path,
        device="cpu",
    )  # fmt: skip
    assert np.isfinite([summary["train_loss"], summary["test_loss"]]).all()
    optimiser = torch.optim.SGD(plain.parameters(), 0.1)
    loss(plain(torch.from_numpy(images[2:3])), torch.from_numpy(labels[2:3])).backward()
    optimiser.step()
    torch.testing.assert_close(module.weight, plain.weight, rtol=1e-12, atol=1e-12)


def test_losses_of_ones_own_may_ignore_ids():
    class Focal(nn.Module):
        ignore_index = 0

        def forward(self, outputs, targets):
            return functional.cross_entropy(outputs, targets, ignore_index=0).square()

    def function(outputs, targets, ignore_index=0):
        return functional.cross_entropy(outputs, targets, ignore_index=ignore_index)

    batch = Batch(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 3]))
    for loss in (Focal(), function, partial(functional.cross_entropy, ignore_index=0)):
        module = nn.Linear(4, 4)
        module.weight.data.copy_(torch.eye(4))
        module.weight.data[3, 3] = -9
        found = mpidl.torch.TorchModel(module, loss).evaluate(batch)
        assert (found.correct, found.counted) == (1, 2)


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_training_loss_is_of_the_same_kind_as_that_of_evaluations(tmp_path, name, micro_batches):
    data = Indexed(given := list(zip(*segmented(), strict=True)), given)
    summary = mpidl.train(
        segmenting(), data, loss=LEFT_OUT[name], rule=mpidl.Sgd(1e-30), batch=5, epochs=1, dir=tmp_path, device="cpu",
        micro_batches=micro_batches,
    )  # fmt: skip
    assert summary["train_loss"] == pytest.approx(summary["test_loss"], rel=1e-9)


@pytest.mark.parametrize(
    ("loss", "last"),
    [
        (functional.binary_cross_entropy, nn.Sigmoid()),
        (nn.BCELoss(), nn.Sigmoid()),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), nn.Identity()),
        (partial(functional.binary_cross_entropy_with_logits, reduction="sum"), nn.Identity()),
        (nn.MultiLabelSoftMarginLoss(), nn.Identity()),
    ],
)
def test_labels_by_probabilities_and_by_logits(tmp_path, loss, last):
    random = np.random.default_rng(1)
    inputs, labels = random.normal(size=(40, 5)), random.integers(0, 2, (40, 3)).astype(float)
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(5, 3), last).double()
    with torch.no_grad():
        outputs = module[0](torch.from_numpy(inputs)).numpy()
    summary = mpidl.train(
        module, Arrays((inputs, labels), (inputs, labels)), loss=loss, metrics=["f1"], rule=mpidl.Sgd(1e-30), steps=1,
        dir=tmp_path, device="cpu",
    )  # fmt: skip
    assert summary["accuracy_name"] == "exact match"
    assert summary["test_accuracy"] == oracle.accuracy_score(labels, outputs > 0)
    assert summary["test_f1"] == pytest.approx(oracle.f1_score(labels, outputs > 0, average="macro"))


def test_one_label_without_an_axis_of_outputs():
    module = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    batch = Batch(np.array([[1, 0], [0, 1], [1, 1]], np.float32), np.array([1, 0, 1], np.float32))
    model = mpidl.torch.TorchModel(module, "binary_cross_entropy_with_logits")
    with torch.no_grad():
        expected = ((module(torch.from_numpy(batch.inputs)) > 0).numpy() == (batch.targets > 0.5)).sum()
    assert model.evaluate(batch).correct == expected


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        ("cross_entropy", np.arange(3)),
        (nn.CrossEntropyLoss(ignore_index=255), np.arange(3)),
        ("cross_entropy", np.eye(3, dtype=np.float32)),
        (nn.BCEWithLogitsLoss(), np.eye(3, dtype=np.float32)),
        (nn.BCEWithLogitsLoss(), np.zeros((3, 3), np.float32)),
    ],
)
@pytest.mark.parametrize("where", [0, 2, slice(None)])
def test_outputs_that_are_nan_are_never_right(loss, targets, where):
    module = nn.Linear(3, 3)
    module.load_state_dict({"weight": torch.eye(3), "bias": torch.full((3,), -0.5)})
    model, batch = mpidl.torch.TorchModel(module, loss), Batch(np.eye(3, dtype=np.float32), targets)
    assert model.evaluate(batch).correct == (3 if targets.any() else 0)
    with torch.no_grad():
        module.bias[where] = np.nan
    assert model.evaluate(batch).correct == 0


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_probabilities_of_classes_stand_for_the_most_probable(tmp_path, loss):
    random = np.random.default_rng(1)
    inputs, targets = random.normal(size=(40, 5)), random.dirichlet(np.ones(3), 40)
    torch.manual_seed(2)
    module = nn.Linear(5, 3).double()
    with torch.no_grad():
        predicted = module(torch.from_numpy(inputs)).argmax(1).numpy()
    summary = mpidl.train(
        module, Arrays((inputs, targets), (inputs, targets)), loss=loss, metrics=["f1"], rule=mpidl.Sgd(1e-30), steps=1,
        dir=tmp_path, device="cpu",
    )  # fmt: skip
    classes = targets.argmax(1)
    assert summary["test_accuracy"] == oracle.accuracy_score(classes, predicted)
    assert summary["test_f1"] == pytest.approx(oracle.f1_score(classes, predicted, average="macro"))


@pytest.mark.parametrize("name", LEFT_OUT)
def test_pieces_of_a_batch_count_what_the_loss_counts(name):
    images, labels = segmented()
    whole, divided = (mpidl.torch.TorchModel(segmenting(), LEFT_OUT[name], micro_batches=pieces) for pieces in (1, 5))
    (loss, gradient), (same_loss, same) = (each.loss_and_gradient(Batch(images, labels)) for each in (whole, divided))
    assert same_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(same, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_tensors_become_arrays(dtype):
    tensor = torch.arange(4).to(dtype).requires_grad_(dtype.is_floating_point)
    found = on_host(tensor)
    assert type(found) is np.ndarray
    assert found.tolist() == [0, 1, 2, 3]
