"""The jobs of clicks: a network of layers and a PyTorch module that are the same model."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mpidl.config import load
from mpidl.job.build import build
from mpidl.job.checks import scoring
from sparse_rows import RowsInArrays

JOBS = Path(__file__).parents[2] / "jobs"
sys.path.append(str(JOBS.parent))
from jobs import clicks  # noqa: E402

IDS = 260


def test_the_network_and_the_module_are_the_same(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(JOBS.parent)
    monkeypatch.setattr(clicks, "stream", clicks.Clicks(samples=64, test_samples=64, ids=IDS).open)
    layers, module = (build(load(JOBS / f"{name}.toml")) for name in ("clicks", "torch_clicks"))
    network, model = layers.original, module.original
    (table,), (of_module,) = network.tables, model.tables
    assert (table.dimension, table.normal, table.scale) == (of_module.dimension, of_module.normal, of_module.scale)
    batch = layers.dataset.train.gather(np.arange(64))
    rows = RowsInArrays(np.random.default_rng(3).normal(size=(IDS, table.dimension)).astype(np.float32))
    other_rows = RowsInArrays(*rows.weights)
    own = list(network.layout.views(network.parameters).values())
    for mine, its in zip(own, model.layout.views(model.parameters).values(), strict=True):
        its[...] = mine.T
    network.rows, model.rows = rows, other_rows
    (loss, gradient), (expected, of_parameters) = (each.loss_and_gradient(batch) for each in (network, model))
    assert loss == pytest.approx(expected, rel=1e-6)
    found = network.layout.views(gradient).values(), model.layout.views(of_parameters).values()
    for mine, its in zip(*found, strict=True):
        np.testing.assert_allclose(mine.T, its, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(rows.gradient(0), other_rows.gradient(0), rtol=1e-4, atol=1e-7)
    assert rows.gradient(0).any()
    for (wanted,), source in ((network.wanted(batch), rows), (model.wanted(batch), other_rows)):
        found = source.lookups[0][1]
        assert np.array_equal(found.ids[found.places], wanted.ids)
    assert {metric.name for metric in layers.metrics} == {"auc"}
    assert scoring(network, layers.dataset).accuracy == "accuracy"
