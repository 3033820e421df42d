"""Modules with tables, and how they are trained with and without this package."""

import copy

import numpy as np
import torch

import mpidl
from mpidl.data.batch import Batch
from mpidl.tables.sources import FirstRows, TablesInMemory
from mpidl.tables.table import Table
from mpidl.torch import TorchModel

functional = torch.nn.functional
ROWS, DIMENSION, SERVERS = 11, 3, 2
LABELS = np.array([0, 1, 1, 0, 2])
OFFSETS = np.array([0, 3, 3, 6, 7])
IDS = np.array([4, 1, 4, 2, 2, 9, 0, 4])
#: The same number of ids in each batch, so that samples keep their bags.
BATCHES = [IDS, (IDS * 3 + 1) % ROWS, np.full(8, 5), IDS[::-1].copy()]


class Bags(torch.nn.Module):
    """Bags of ids, and a layer of what they have become."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(1)
        self.bags = torch.nn.EmbeddingBag(ROWS, DIMENSION, sparse=True, **options)
        self.layer = torch.nn.Linear(DIMENSION, 3)
        self.double()

    def forward(self, ids, offsets, weights=None):
        return self.layer(self.bags(ids, offsets, weights))

    def lookups(self, inputs):
        return {"bags": inputs[0]}


class Words(torch.nn.Module):
    """Two features that share a table, and a table of another feature."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Embedding(ROWS, DIMENSION, sparse=True, **options)
        self.second = torch.nn.Embedding(ROWS, DIMENSION, sparse=True, **options)
        self.second.weight = self.first.weight
        self.other = torch.nn.EmbeddingBag(7, 2, sparse=True, mode="mean")
        self.layer = torch.nn.Linear(2 * DIMENSION + 2, 3)
        self.double()

    def forward(self, ids):
        others = self.other(ids.view(4, 2) % 7)
        return self.layer(torch.cat([self.first(ids[:4]), self.second(ids[4:]), others], 1))


def with_rows(model, rule=None, servers=SERVERS):
    """Let a model look up rows in tables of this process, and return these."""
    rule = mpidl.Sgd(0.5) if rule is None else rule
    tables = [[Table(spec, rule, capacity=99, dtype=np.float64) for _ in range(servers)] for spec in model.tables]
    model.rows = TablesInMemory(tables)
    return tables


def filled(module, model):
    """Return a module with the first rows of a model's tables."""
    same = copy.deepcopy(module)
    with torch.no_grad():
        for number, spec in enumerate(model.tables):
            ids = np.arange(spec.rows)
            found = FirstRows(model.tables, 0, np.float64).look_up(number, ids)
            same.get_parameter(spec.name).copy_(torch.from_numpy(found.rows[found.places]))
        for each in same.modules():
            if getattr(each, "padding_idx", None) is not None:
                each.weight[each.padding_idx] = 0
    return same


def train(model, tables, batches, rate=0.5):
    """Train a model by plain SGD, and its tables by their rule; return the losses."""
    losses = []
    for step, batch in enumerate(batches, 1):
        loss, gradient = model.loss_and_gradient(batch)
        losses.append(loss)
        model.parameters -= rate * gradient
        for number, (found, sums) in (model.rows.take() if tables else {}).items():
            for part, server in zip(found.parts, tables[number], strict=True):
                server.update(found.ids[part], sums[part], step)
    return losses


def plain(module, optimiser, batches, rate=0.5):
    """Train a module as one does without this package, its tables by an optimiser; return the losses."""
    losses, embeddings = [], [each for each in module.modules() if hasattr(each, "sparse")]
    rows = list(dict.fromkeys(each.weight for each in embeddings if each.weight.requires_grad))
    for each in embeddings:
        each.sparse = getattr(each, "mode", "") != "max"  # of which PyTorch has no sparse gradient
    others = [each for each in module.parameters() if all(each is not own for own in rows)]
    steps = [torch.optim.SGD(others, rate), *([optimiser(rows)] if rows else [])]
    for batch in batches:
        module.zero_grad()
        loss = functional.cross_entropy(module(*arguments(batch)), torch.from_numpy(batch.targets))
        loss.backward()
        for each in steps:
            each.step()
        losses.append(loss.item())
    return losses


def arguments(batch):
    return map(torch.from_numpy, batch.inputs if isinstance(batch.inputs, tuple) else (batch.inputs,))


def assert_trained_as_in_pytorch(module, batches, rule=None, optimiser=None, **options):
    """Assert that a module trains as without this package; return the tables."""
    model = TorchModel(module, "cross_entropy", **options)
    expected, tables = filled(module, model), with_rows(model, rule)
    losses = plain(expected, optimiser or (lambda rows: torch.optim.SGD(rows, 0.5)), batches)
    np.testing.assert_allclose(train(model, tables, batches), losses, rtol=0, atol=1e-12)
    evaluation = model.evaluate(batches[0])
    assert all(not rows for rows in model.rows.take().values())
    model.finish()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(tensor, expected.state_dict()[name], rtol=0, atol=1e-12, err_msg=name)
    expected.eval()
    np.testing.assert_allclose(evaluation.outputs, expected(*arguments(batches[0])).detach(), rtol=0, atol=1e-12)
    return tables


def bags(**kinds):
    return [Batch((ids, OFFSETS, *kinds.values()), LABELS, number) for number, ids in enumerate(BATCHES)]


def words(dtype=np.int64):
    return [Batch(ids.astype(dtype), LABELS[:4], number) for number, ids in enumerate(BATCHES)]


RULES = {
    "sgd": (mpidl.Sgd(0.5), lambda rows: torch.optim.SGD(rows, 0.5)),
    "adagrad": (mpidl.Adagrad(0.1), lambda rows: torch.optim.Adagrad(rows, 0.1, eps=0)),
    "adam": (mpidl.Adam(0.1, epsilon=1e-30), lambda rows: torch.optim.SparseAdam(rows, 0.1, eps=1e-30)),
}


def outputs(module, ids):
    return module(torch.from_numpy(ids)), torch.arange(8) % 3
