"""The stream of clicks and what a model can learn of it; and its jobs: layers and a module that are the same model."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mpidl.config import load
from mpidl.job.build import build
from mpidl.job.checks import scoring
from mpidl.metrics.builtin import Auc
from sparse_rows import RowsInArrays

JOBS = Path(__file__).parents[2] / "jobs"
sys.path.append(str(JOBS.parent))
from jobs.clicks import Clicks  # noqa: E402

from jobs import clicks  # noqa: E402

IDS = 260
SMALL = Clicks(samples=50_000, test_samples=20_000, ids=260_000)


def auc(scores, targets):
    metric = Auc()
    return metric.value(metric.sums(scores[:, None], targets))


def test_a_sample_depends_on_its_number_alone():
    dataset, other = SMALL.open(), Clicks(samples=60, test_samples=30, ids=260_000).open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("clicks", (39,), None)
    for split, same in ((dataset.train, other.train), (dataset.test, other.test)):
        batch = split.gather(np.arange(30))
        inputs, targets = batch.inputs.copy(), batch.targets.copy()
        assert (inputs.dtype, inputs.shape) == (np.int64, (30, 39))
        assert (targets.dtype, targets.shape) == (np.float32, (30, 1))
        chosen = np.array([29, 3, 3, 17])
        found = same.as_integers().copy().gather(chosen)
        assert np.array_equal(found.inputs, inputs[chosen])
        assert np.array_equal(found.targets, targets[chosen])
        assert np.array_equal(same.teacher(chosen), split.teacher(np.arange(30))[chosen])
    assert not np.array_equal(inputs, dataset.train.gather(np.arange(30)).inputs)
    assert dataset.train.checksum() != Clicks(samples=50_000, ids=260_000, seed=1).open().train.checksum()


def test_numbers_are_counts_and_ids_follow_zipf():
    inputs = SMALL.open().train.gather(np.arange(50_000)).inputs
    numbers, ids = inputs[:, :13], inputs[:, 13:]
    assert numbers.min() == 0
    assert 1000 < numbers.max() < 1100
    assert np.allclose(np.log1p(numbers).std(0), 7 / 12**0.5, rtol=0.06)
    assert ids.min() >= 0
    assert ids.max() < 260_000
    own = [set(feature.tolist()) for feature in ids.T]
    assert sum(map(len, own)) == len(set().union(*own))
    law = np.arange(1.0, 10_001) ** -1.05
    law /= law.sum()
    times = np.array([np.sort(np.unique(feature, return_counts=True)[1])[:-1001:-1] for feature in ids.T]).mean(0)
    assert np.allclose(times[:3] / 50_000, law[:3], rtol=0.01)
    assert np.allclose(times.sum() / 50_000, law[:1000].sum(), rtol=0.02)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_teacher_knows_the_probabilities_of_clicks(seed):
    split = Clicks(test_samples=60_000, seed=seed).open().test
    every = np.arange(60_000)
    logits, targets = split.teacher(every), split.gather(every).targets
    assert auc(logits, targets) == pytest.approx(0.805, abs=0.012)
    order = logits.argsort().reshape(10, -1)
    found, expected = targets[order, 0].mean(1), (1 / (1 + np.exp(-logits)))[order].mean(1)
    assert np.allclose(found, expected, atol=0.02)


def test_a_table_of_weights_nearly_learns_the_teacher():
    """Logistic regression with a weight for each id, by batches with Adagrad, also with a fifth of the ids kept."""
    dataset = Clicks(samples=320_000, test_samples=30_000, ids=10_400).open()
    weights, sums, slopes = np.zeros(10_400), np.full(10_400, 1e-6), np.zeros(14)
    sums_of_slopes, times = np.full(14, 1e-2), np.zeros(10_400, int)

    def features(batch):
        numbers = np.log1p(batch.inputs[:, :13]) / 7 - 0.5
        return np.column_stack([numbers, np.ones(len(numbers))]), batch.inputs[:, 13:]

    for start in range(0, 320_000, 400):
        batch = dataset.train.gather(np.arange(start, start + 400))
        numbers, ids = features(batch)
        times += np.bincount(ids.ravel(), minlength=10_400)
        errors = 1 / (1 + np.exp(-(numbers @ slopes + weights[ids].sum(1)))) - batch.targets[:, 0]
        gradient = np.bincount(ids.ravel(), np.repeat(errors, 26), minlength=10_400) / 400
        sums += gradient**2
        weights -= 0.03 * gradient / np.sqrt(sums)
        gradient = errors @ numbers / 400
        sums_of_slopes += gradient**2
        slopes -= 0.1 * gradient / np.sqrt(sums_of_slopes)
    every = np.arange(30_000)
    batch = dataset.test.gather(every)
    numbers, ids = features(batch)
    best = auc(dataset.test.teacher(every), batch.targets)
    frequent = times > np.sort(times[times > 0])[int(0.8 * (times > 0).sum())]
    assert 0.1 < frequent.sum() / (times > 0).sum() < 0.2
    for kept in (weights, np.where(frequent, weights, 0)):
        found = auc(numbers @ slopes + kept[ids].sum(1), batch.targets)
        assert best - 0.01 < found <= best
    assert auc(numbers @ slopes, batch.targets) < best - 0.1


def test_indices_outside_are_refused():
    split = SMALL.open().test
    for index in (-1, 20_000):
        with pytest.raises(IndexError, match=r"outside \[0, 20000\)"):
            split.gather(np.array([index]))


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
