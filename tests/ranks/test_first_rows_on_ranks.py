"""Rows of modules' tables at the beginning, on ranks: those of the first rank, and those of a training before."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.data import ArraySplit, Dataset  # noqa: E402
from mpidl.nn import Dense, Flatten, MeanSquaredError, Network, SparseEmbedding  # noqa: E402

pytestmark = pytest.mark.mpi(min_size=4)
ROWS = 50
TINY = mpidl.Sgd(1e-12)


class Words(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.EmbeddingBag(ROWS, 3, sparse=True)
        self.top = torch.nn.Linear(3, 5)

    def forward(self, ids):
        return self.top(self.words(ids))


def data(targets, classes=None):
    ids = np.random.default_rng(0).integers(0, ROWS // 2, (80, 4))
    split = ArraySplit(ids, targets(ids))
    return Dataset("ids", (4,), classes, split, split)


def train(module, path, name, **options):
    options = {"loss": "cross_entropy", "epochs": 2, "batch": 8, "dir": str(path), "name": name, "seed": 4} | options
    return mpidl.train(module, data(lambda ids: ids.sum(1) % 5, 5), **options)


def test_all_ranks_begin_with_the_values_of_the_first_and_go_on_with_what_is_trained(comm, shared_path, capfd):
    module, first = Words(seed=comm.rank), Words(seed=0).words.weight.detach()
    train(module, shared_path, "first", rule=TINY, servers=comm.size - 2)
    assert torch.allclose(module.words.weight.detach(), first, rtol=0, atol=1e-9)
    if comm.rank == 0:
        assert "initial parameters and rows differ from rank to rank" in capfd.readouterr().err
    train(module, shared_path, "second", rule=mpidl.Sgd(0.5))
    trained = module.words.weight.detach().clone()
    assert not torch.allclose(trained, first, atol=1e-3)
    train(module, shared_path, "third", rule=TINY, servers=comm.size - 2)
    assert torch.allclose(module.words.weight.detach(), trained, rtol=0, atol=1e-9)


def test_a_network_goes_on_with_its_rows(comm, shared_path):
    layers = [SparseEmbedding(3, ROWS, scale=0.5), Flatten(), Dense(1)]
    network = Network(layers, (4,), loss=MeanSquaredError(), dtype="float64", seed=7)
    dataset = data(lambda ids: np.sin(ids).sum(1, keepdims=True))
    options = {"batch": 8, "dir": str(shared_path), "seed": 4}
    first = mpidl.train(network, dataset, rule=mpidl.Adagrad(0.05), epochs=4, name="first", **options)
    second = mpidl.train(network, dataset, rule=TINY, epochs=1, name="second", **options)
    assert second["test_loss"] == pytest.approx(first["test_loss"], rel=1e-6)
