"""Tables of PyTorch modules in checkpoints: evaluated, loaded and exported."""

import numpy as np
import pytest
import torch

import mpidl
from mpidl.data import ArraySplit, Dataset
from mpidl.runs.load import export

ROWS, PADDING = 40, 2


class Words(torch.nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(ROWS, 3, sparse=sparse, padding_idx=PADDING)
        self.top = torch.nn.Linear(12, 5)

    def forward(self, ids):
        return self.top(self.words(ids).flatten(1))


def data():
    random = np.random.default_rng(5)
    split = ArraySplit(random.integers(0, ROWS // 2, (60, 4)), random.integers(0, 5, 60))
    return Dataset("words", (4,), 5, split, split)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory and the summary of a run."""
    directory = tmp_path_factory.mktemp("modules")
    options = {"loss": "cross_entropy", "epochs": 2, "batch": 10, "dir": str(directory), "name": "run", "seed": 4}
    return directory / "run", mpidl.train(Words(), data(), rule=mpidl.Adagrad(0.1), **options)


def test_an_evaluation_has_the_trained_rows(run):
    directory, summary = run
    found = mpidl.evaluate(directory, Words(), data(), loss="cross_entropy")
    assert found["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-6)


def test_the_weight_for_pytorch(run, tmp_path):
    """Those of ids that were never seen, and of the padding, too."""
    directory, summary = run
    export(directory, "torch", file=tmp_path / "model.pt")
    dense = Words(sparse=False)
    dense.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    assert not dense.words.weight[PADDING].any()
    assert float(dense.words.weight.detach()[ROWS // 2 :].std()) == pytest.approx(1, rel=0.3)
    test = data().test.gather(np.arange(60))
    outputs = dense(torch.from_numpy(test.inputs.astype(np.int64)))
    loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(test.targets))
    assert float(loss) == pytest.approx(summary["test_loss"], rel=1e-6)
    table = mpidl.load(directory).tables["words.weight"]
    ids = table.read("ids")
    assert set(ids) == set(range(ROWS)) - {PADDING}
    np.testing.assert_array_equal(dense.words.weight.detach().numpy()[ids], table.read("rows"))
