"""Data that need no files, and checksums of data."""

import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import ArraySplit, Digits, Synthetic
from mpidl.data.builtin import FILE, SampleTable, SyntheticSplit
from mpidl.data.dataset import SAMPLES_PER_CHECKSUM, Split

# Samples per class in UCI's optdigits.tes, from its description.
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_is_what_it_says():
    dataset = Digits().open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("digits", (8, 8), 10)
    assert (dataset.train.samples, dataset.test.samples) == (1437, 360)
    batches = [split.gather(np.arange(split.samples)) for split in (dataset.train, dataset.test)]
    assert np.bincount(np.concatenate([batch.targets for batch in batches])).tolist() == COUNTS
    assert np.bincount(batches[1].targets, minlength=10).min() > 20
    inputs = np.concatenate([batch.inputs for batch in batches])
    assert len(np.unique(inputs, axis=0)) == 1797
    sixteenths = np.round(np.unique(inputs) * 16)
    assert sixteenths.tolist() == list(range(17))
    assert np.abs(np.unique(inputs) - sixteenths / 16).max() <= 0.5 / 255 + 1e-6
    assert np.round(inputs * 16).sum() == 561718  # the sum of the original pixels, 0 to 16


def test_can_be_learnt_by_nearest_neighbour():
    dataset = Digits().open()
    train, labels = (a.copy() for a in dataset.train.gather(np.arange(1437))[:2])
    test, expected = dataset.test.gather(np.arange(360))[:2]
    train, test = train.reshape(1437, -1), test.reshape(360, -1)
    distances = (train**2).sum(1) - 2 * test @ train.T
    assert (labels[distances.argmin(1)] == expected).mean() > 0.97


def test_file_is_small_and_states_its_licence():
    assert FILE.stat().st_size < 100_000
    with h5py.File(FILE) as file:
        assert file["train/x"].dtype == np.uint8
        assert "Alpaydin" in file.attrs["creators"]
        assert "CC BY 4.0" in file.attrs["license"]
        assert file.attrs["source"].startswith("https://doi.org/")


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


class Huge(Split):
    """Samples that are made when they are read."""

    samples = 10**12

    def __init__(self, shift=0):
        self.shift, self.read = shift, 0

    def gather(self, indices, epoch=0):
        self.read += len(indices)
        return ArraySplit(np.full((1, 3), float(indices[0] % 7 + self.shift)), np.zeros(1, int)).gather(np.array([0]))


def test_few_samples_are_read():
    split = Huge()
    assert split.checksum() == Huge().checksum() != Huge(shift=1).checksum()
    assert split.read == SAMPLES_PER_CHECKSUM


def split(samples=100, label=3, value=0.0):
    inputs, labels = np.zeros((samples, 4), np.float32), np.zeros(samples, int)
    labels[41], inputs[-1] = label, value
    return ArraySplit(inputs, labels)


@pytest.mark.parametrize("other", [split(samples=101), split(label=4), split(value=1.0)])
def test_other_data_have_another_checksum(other):
    assert split().checksum() == split().checksum() != other.checksum()
