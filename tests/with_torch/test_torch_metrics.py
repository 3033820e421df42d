"""Metrics of PyTorch modules."""

import numpy as np
import pytest
from sklearn import metrics as oracle

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.data import Arrays  # noqa: E402
from mpidl.metrics.metric import on_host  # noqa: E402

CPU = {"device": "cpu"}


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_tensors_become_arrays(dtype):
    tensor = torch.arange(4).to(dtype).requires_grad_(dtype.is_floating_point)
    found = on_host(tensor)
    assert type(found) is np.ndarray
    assert found.tolist() == [0, 1, 2, 3]
