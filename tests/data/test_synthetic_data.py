from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import Synthetic
from mpidl.data.builtin import SampleTable, SyntheticSplit


def everything(split) -> tuple[np.ndarray, np.ndarray]:
    return tuple(array.copy() for array in split.gather(np.arange(split.samples))[:2])


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 9), st.permutations(range(13)), st.integers(1, 12))
def test_a_sample_depends_on_its_index_alone(test_samples, classes, seed, order, size):
    source = Synthetic(samples=13, test_samples=test_samples, shape=(3, 2), classes=classes, seed=seed)
    inputs, labels = everything(source.open().train)
    split = source.open().train
    batch = split.gather(np.array(order[:size]))
    assert np.array_equal(batch.inputs, inputs[order[:size]])
    assert np.array_equal(batch.targets, labels[order[:size]])
    assert batch.inputs.dtype == np.float32
    assert batch.inputs.shape == (size, 3, 2)
    assert batch.targets.dtype == np.int64
    assert labels.min() >= 0
    assert labels.max() < classes


def test_describes_itself():
    dataset = Synthetic(samples=7, test_samples=3, shape=(4, 5), classes=6).open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("synthetic", (4, 5), 6)
    assert (dataset.train.samples, dataset.test.samples) == (7, 3)
    assert not dataset.train.contiguous


def test_seed_and_split_make_a_difference():
    one, same, other = (Synthetic(samples=50, test_samples=50, seed=seed).open() for seed in (1, 1, 2))
    train = everything(one.train)[0]
    assert np.array_equal(train, everything(same.train)[0])
    assert not np.any(train == everything(other.train)[0])
    assert not np.array_equal(train, everything(one.test)[0])


@pytest.mark.parametrize("classes", [2, 10, 37])
def test_can_be_learnt(classes):
    dataset = Synthetic(samples=4000, test_samples=1000, shape=(64,), classes=classes, noise=1.2).open()
    inputs, labels = everything(dataset.train)
    means = np.stack([inputs[labels == label].mean(0) for label in range(classes)])
    tested, expected = everything(dataset.test)
    scores = tested @ means.T - (means**2).sum(1) / 2
    assert (scores.argmax(1) == expected).mean() > 0.95


def test_noise_has_the_deviation_asked_for():
    inputs = everything(Synthetic(samples=5000, shape=(100,), classes=1, noise=3.0).open().train)[0]
    assert np.allclose(inputs.std(0), 3.0, rtol=0.1)
    silent = everything(Synthetic(samples=5000, shape=(100,), classes=1, noise=0.0).open().train)[0]
    assert np.all(silent == silent[0])


def test_many_classes_and_samples_need_little_memory():
    tracemalloc.start()
    try:
        dataset = Synthetic(samples=10**9, shape=(440,), classes=8192).open()
        batch = dataset.train.gather(np.array([0, 10**9 - 1, 8191, 12345]))
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()
    assert batch.targets.tolist() == [0, (10**9 - 1) % 8192, 8191, 12345 % 8192]


def test_means_of_all_classes_differ():
    dataset = Synthetic(samples=300, shape=(8,), classes=300, noise=0.0).open()
    assert len(np.unique(everything(dataset.train)[0], axis=0)) == 300


def test_gather_allocates_nothing_once_warm(peak):
    split = Synthetic(samples=500, shape=(28, 28)).open().train
    indices = np.random.default_rng(0).permutation(500)[:128]
    assert peak(lambda: split.gather(indices)) < 4096


def test_load_makes_the_table():
    table = SampleTable(Synthetic(samples=500))
    split = SyntheticSplit(table, 0, 500)
    assert "rows" not in vars(table)
    split.load()
    assert "rows" in vars(table)


@pytest.mark.parametrize("indices", [[0, 50], [-1]])
def test_indices_outside_are_refused(indices):
    with pytest.raises(IndexError, match=r"outside \[0, 50\)"):
        Synthetic(samples=50).open().train.gather(np.array(indices))
