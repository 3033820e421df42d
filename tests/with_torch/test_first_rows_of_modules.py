"""Rows of a module's tables at the beginning: values in memory, those of a file, and drawn ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

import mpidl
from mpidl.data import ArraySplit, Dataset
from mpidl.runs.load import export
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import saved_tables

ROWS, PADDING = 40, 2
#: A rate with which nothing is learned.
TINY = mpidl.Sgd(1e-12)


class Words(torch.nn.Module):
    """The module of the manual: a table of which no process has the weight, and one with values that a layer shares."""

    def __init__(self, seed=3, device="meta"):
        super().__init__()
        torch.manual_seed(seed)
        self.users = torch.nn.Embedding(ROWS, 2, sparse=True, device=device)
        self.words = torch.nn.EmbeddingBag(ROWS, 3, mode="mean", padding_idx=PADDING, sparse=True)
        self.again = torch.nn.EmbeddingBag(ROWS, 3, mode="mean", padding_idx=PADDING, sparse=True)
        self.again.weight = self.words.weight
        self.top = torch.nn.Linear(8, 5)

    def forward(self, ids):
        return self.top(torch.cat([self.users(ids[:, 0]), self.words(ids), self.again(ids[:, 1:])], 1))


def data():
    random = np.random.default_rng(5)
    split = ArraySplit(random.integers(0, ROWS // 2, (60, 4)), random.integers(0, 5, 60))
    return Dataset("words", (4,), 5, split, split)


@pytest.fixture
def train(tmp_path):
    def train(module, rule=TINY, **options):
        keywords = {"loss": "cross_entropy", "batch": 10, "epochs": 1, "dir": str(tmp_path), "rule": rule, "seed": 4}
        return mpidl.train(module, data(), **keywords | options)["run_dir"]

    return train


def rows_of(run, table, step=None):
    """Return all ids of a run's table and their rows, in the order of the ids."""
    path = max((Path(run) / "checkpoints").iterdir(), key=lambda each: int(each.name))
    saved = saved_tables(Checkpoint(path if step is None else path.with_name(str(step))))[table]
    order = np.argsort(saved.read("ids"))
    return saved.read("ids")[order], saved.read("rows")[order]


@pytest.mark.parametrize("servers", [1, 3])
def test_values_in_memory_are_the_first_rows_in_a_second_training_too(train, servers):
    module, seen = Words(), [id for id in range(ROWS) if id != PADDING]
    begun = module.words.weight.detach().clone()
    run = train(module, servers=servers)
    assert torch.allclose(module.words.weight.detach(), begun, rtol=0, atol=1e-9)
    ids, rows = rows_of(run, "words.weight", step=0)
    assert ids.tolist() == seen
    assert np.array_equal(rows, begun[seen].numpy())
    train(module, mpidl.Sgd(0.5), servers=servers)
    trained = module.words.weight.detach().clone()
    assert not torch.allclose(trained, begun, atol=1e-3)
    train(module, servers=servers)
    assert torch.allclose(module.words.weight.detach(), trained, rtol=0, atol=1e-9)


def test_a_line_says_which_rows_are_drawn(train, capfd):
    line = "mpidl: model: {}: the rows begin with drawn values, since {}"
    train(Words())
    assert line.format("users.weight", "these weights take no memory") in capfd.readouterr().err
    module = Words(device="cpu")
    train(module)
    assert "drawn" not in capfd.readouterr().err
    begun = module.words.weight.detach().clone()
    train(module, tables={"first_values": "drawn"}, epochs=2)
    why = "tables.first_values is 'drawn'"
    assert line.format("users.weight, words.weight", why) in capfd.readouterr().err
    assert not torch.allclose(module.words.weight.detach(), begun, atol=1e-3)


@pytest.mark.parametrize("kind", ["run", "torch", "npz", "safetensors"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_run_begins_with_the_rows_of_another(train, tmp_path, kind, device):
    before = train(Words(), mpidl.Sgd(0.5), servers=2, name="before")
    path = tmp_path / "before"
    if kind != "run":
        path = tmp_path / f"model.{kind if kind != 'torch' else 'pt'}"
        export(tmp_path / "before", kind, file=path)
    after = train(Words(seed=8, device=device), initial=str(path), servers=3, name="after")
    for table in ("users.weight", "words.weight"):
        ids, rows = rows_of(before, table)
        found, own = rows_of(after, table)
        np.testing.assert_allclose(own[np.isin(found, ids)], rows, rtol=0, atol=1e-9)
        assert set(found) >= set(ids)


def test_the_export_loads_into_the_module_of_the_manual_and_is_what_an_evaluation_has(train, tmp_path):
    run = train(Words(), mpidl.Adagrad(0.1), servers=2)
    evaluated = mpidl.evaluate(run, Words(), data(), loss="cross_entropy")
    export(Path(run), "torch", file=tmp_path / "model.pt")
    module = Words(seed=8)
    module.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True, assign=True)
    for table in ("users", "words"):
        ids, rows = rows_of(run, f"{table}.weight")
        assert np.array_equal(getattr(module, table).weight.detach()[ids].numpy(), rows)
    assert torch.equal(module.again.weight, module.words.weight)
    assert not module.words.weight[PADDING].any()
    unseen = module.words.weight.detach()[ROWS // 2 :]
    assert float(unseen.std()) == pytest.approx(1, rel=0.3)
    test = data().test.gather(np.arange(60))
    outputs = module(torch.from_numpy(test.inputs.astype(np.int64)))
    loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(test.targets))
    assert float(loss.detach()) == pytest.approx(evaluated["test_loss"], rel=1e-6)
    assert set(rows_of(run, "words.weight")[0]) == set(range(ROWS)) - {PADDING}


@pytest.mark.parametrize("key", ["max_rows", "max_age", "admission"])
def test_rows_that_would_be_lost_are_refused(train, key):
    line = f"^tables.{key}: 3, but the rows of words.weight begin with its values, all of them; expected tables.first_"
    with pytest.raises(mpidl.UsageError, match=line):
        train(Words(), tables={key: 3})
    train(Words(), tables={key: 3, "first_values": "drawn"})


IDS = np.arange(ROWS)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"words.weight.ids": IDS + 1}, "table words.weight: an id of 40, expected 0 to 39"),
        ({"words.weight.ids": IDS // 2}, "two rows of an id in table 'words.weight', expected one"),
        ({"words.weight.ids": IDS[1:]}, r"tensor 'words.weight.rows' has the shape \(40, 3\), the model's \(39, 3\)"),
        ({"words.weight.rows": np.ones((ROWS, 4))}, r"has the shape \(40, 4\), the model's \(40, 3\)"),
        ({"words.weight.rows": None}, "no tensor 'words.weight', which the model has"),
        ({"words.weight.rows": np.ones((ROWS, 3), int)}, "tensor 'words.weight.rows' is of int64, expected floats"),
    ],
)
def test_files_with_other_rows(train, tmp_path, change, line):
    tensors = {name: tensor.numpy() for name, tensor in Words().top.state_dict(prefix="top.").items()}
    tensors |= {"users.weight": np.ones((ROWS, 2)), "words.weight.ids": IDS, "words.weight.rows": np.ones((ROWS, 3))}
    tensors |= change
    np.savez(tmp_path / "model.npz", **{name: array for name, array in tensors.items() if array is not None})
    with pytest.raises(mpidl.UsageError, match=rf"^model.initial: .*model.npz: .*{line}"):
        train(Words(), initial=str(tmp_path / "model.npz"))
