"""Tables that are trained like the whole matrix, and like PyTorch's sparse embeddings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.rules import Adagrad, Adam, Sgd
from mpidl.tables.lookups import TableSpec
from mpidl.tables.sources import TablesInMemory
from mpidl.tables.table import Table

IDS, DIMENSION = 40, 3
SPEC = TableSpec("users", DIMENSION, rows=IDS)


class Servers:
    """A table on servers in this process."""

    def __init__(self, servers, rule, dtype=np.float64):
        self.tables = [Table(SPEC, rule, seed=5, dtype=dtype) for _ in range(servers)]
        self.rows = TablesInMemory([self.tables])

    def values(self):
        lookup = self.rows.look_up(0, np.arange(IDS))
        return lookup.rows[lookup.places]

    def step(self, lookups, number):
        """Look ids up, once or several times, and update with the gradients of each."""
        for ids, gradients in lookups:
            self.rows.look_up(0, ids).add(gradients)
        found, gradient = self.rows.take()[0]
        for table, own in zip(self.tables, found.parts, strict=True):
            table.update(found.ids[own], gradient[own], number)


def batch(random, size=30):
    return random.integers(0, IDS, size), random.normal(size=(size, DIMENSION))


@settings(max_examples=15)
@given(
    rule=st.sampled_from([Sgd(0.3), Adagrad(0.3)]),
    servers=st.integers(1, 3),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32),
)
def test_the_bits_of_a_dense_matrix(rule, servers, dtype, seed):
    random, sparse = np.random.default_rng(seed), Servers(servers, rule, dtype)
    dense = sparse.values().reshape(-1)
    state = rule.init(dense)
    for number in range(1, 6):
        ids, gradients = batch(random, random.integers(0, 60))
        gradients = gradients.astype(dtype)
        sparse.step([(ids, gradients)], number)
        gradient = np.zeros((IDS, DIMENSION), dtype)
        np.add.at(gradient, ids, gradients)
        rule.update(dense, state, gradient.reshape(-1), number)
        np.testing.assert_array_equal(sparse.values(), dense.reshape(IDS, DIMENSION))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_embeddings_of_pytorch(name, servers):
    torch = pytest.importorskip("torch")
    # SparseAdam adds epsilon to the root of the second moment before the bias is corrected; so it is tiny here.
    rule, optimizer, options = {
        "sgd": (Sgd(0.3), torch.optim.SGD, {}),
        "adagrad": (Adagrad(0.3), torch.optim.Adagrad, {"eps": 0.0}),
        "adam": (Adam(0.3, epsilon=1e-30), torch.optim.SparseAdam, {"eps": 1e-30}),
    }[name]
    random, sparse = np.random.default_rng(0), Servers(servers, rule)
    embedding = torch.nn.Embedding(IDS, DIMENSION, sparse=True, _weight=torch.tensor(sparse.values()))
    theirs = optimizer(embedding.parameters(), lr=0.3, **options)
    for number in range(1, 20):
        lookups = [batch(random) for _ in range(1 + number % 2)]
        sparse.step(lookups, number)
        theirs.zero_grad()
        sum((embedding(torch.tensor(ids)) * torch.tensor(gradients)).sum() for ids, gradients in lookups).backward()
        theirs.step()
        expected = embedding.weight.detach().numpy()
        np.testing.assert_allclose(sparse.values(), expected, rtol=1e-12, atol=1e-12)
