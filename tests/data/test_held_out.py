"""Training samples held out for validation."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from data_files import hdf5_file
from hypothesis import example, given
from hypothesis import strategies as st

from mpidl.data import (
    SOURCES,
    Arrays,
    Augmentation,
    Normalisation,
    Subset,
    augmented,
    held_out,
    normalised,
)
from mpidl.errors import UsageError


def numbered(samples, make=lambda *splits: Arrays(*splits).open()):
    """Return a dataset whose sample i is i."""
    inputs = np.arange(samples, dtype=np.float32)[:, None]
    return make((inputs, inputs), (inputs[:1], inputs[:1]))


def numbers(split):
    return split.gather(np.arange(split.samples)).inputs[:, 0].astype(int).tolist()


@given(st.integers(2, 300), st.floats(0, 1, exclude_min=True, exclude_max=True), st.integers(0, 9))
@example(samples=10, share=0.99, seed=0)
def test_every_sample_is_in_one_of_the_two(samples, share, seed):
    dataset = held_out(numbered(samples), share, 8, seed)
    train, validation = numbers(dataset.train), numbers(dataset.validation)
    assert sorted(train + validation) == list(range(samples))
    assert len(validation) == min(max(1, round(share * samples)), samples - 1)
    assert (train, validation) == (sorted(train), sorted(validation))
    again = held_out(numbered(samples), share, 8, seed)
    assert numbers(again.validation) == validation


def test_the_samples_of_a_subset_are_augmented_anew_in_each_epoch():
    epochs = []
    split = SimpleNamespace(contiguous=False, chunk=1, lookahead=1, gather=lambda indices, epoch: epochs.append(epoch))
    for epoch in (0, 3):
        Subset(split, np.array([1, 4])).gather(np.arange(2), epoch)
    assert epochs == [0, 3]


def test_the_seed_chooses():
    chosen = [numbers(held_out(numbered(100), 0.2, 8, seed).validation) for seed in range(5)]
    assert len(set(map(tuple, chosen))) == 5


def test_nothing_is_held_out_without_a_share():
    dataset = numbered(5)
    assert held_out(dataset, None, 1, 0) is dataset


def test_a_share_of_data_that_have_a_validation_split_or_are_too_few():
    own = Arrays(*[(np.zeros((3, 1)), np.zeros((3, 1)))] * 2, validation=(np.ones((2, 1)), np.ones((2, 1)))).open()
    assert numbers(own.validation) == [1, 1]
    with pytest.raises(UsageError, match=r"data\.validation: 0\.5, but the data have a validation split of their own"):
        held_out(own, 0.5, 1, 0)
    with pytest.raises(UsageError, match=r"data\.validation: 0\.5 of 1 training sample, expected at least 2"):
        held_out(numbered(1), 0.5, 1, 0)


def test_a_validation_split_of_another_shape():
    arrays = np.zeros((3, 2)), np.zeros((3, 1))
    with pytest.raises(UsageError, match="validation inputs: shape"):
        Arrays(arrays, arrays, validation=(np.zeros((3, 1)), np.zeros((3, 1)))).open()


def test_validation_samples_are_normalised_and_not_augmented():
    images = np.random.default_rng(0).random((40, 6, 6), np.float32)
    dataset = Arrays((images, np.arange(40) % 3), (images, np.arange(40) % 3)).open()
    dataset = held_out(dataset, 0.25, 8, 0)
    kept = dataset.validation.gather(np.arange(10)).inputs.copy()
    made = normalised(augmented(dataset, Augmentation(noise=0.5), 0), Normalisation(0.5, 2.0))
    assert made.validation.gather(np.arange(10)).inputs == pytest.approx((kept - 0.5) / 2)
    assert made.train.samples == 30


def test_a_batch_to_train_on_outlives_an_evaluation():
    dataset = held_out(numbered(64), 0.5, 8, 0)
    batch = dataset.train.gather(np.arange(16))
    before = batch.inputs.copy()
    dataset.validation.gather(np.arange(16))
    assert np.array_equal(batch.inputs, before)


def hdf5(path, samples, **more):
    inputs = np.arange(samples, dtype=np.float32)[:, None]
    made = {"train/x": inputs, "train/y": inputs, "test/x": inputs[:3], "test/y": inputs[:3]}
    return SOURCES["hdf5"](str(hdf5_file(path, made | {key.replace("_", "/"): each for key, each in more.items()})))


@pytest.mark.parametrize("samples", [64, 67, 5])
def test_of_a_file_whole_portions_are_held_out(tmp_path, samples):
    dataset = held_out(hdf5(tmp_path / "data.h5", samples).open(), 0.25, 8, 3)
    train, validation = numbers(dataset.train), numbers(dataset.validation)
    assert sorted(train + validation) == list(range(samples))
    if samples > 5:
        starts = validation[::8]
        assert len(starts) == 2
        assert validation == [start + i for start in starts for i in range(8)]
        assert all(start % 8 == 0 for start in starts)
        # Each portion of the rest is one block of the file, which is read by one call.
        portion = np.arange(8, 16)
        dataset.train.prefetch(portion)
        assert np.ptp(dataset.train.gather(portion).inputs) == 7


def test_a_file_with_a_validation_split(tmp_path):
    values = np.full((2, 1), 7.0, np.float32)
    source = hdf5(tmp_path / "data.h5", 5, validation_x=values, validation_y=values)
    dataset = source.open()
    assert numbers(dataset.validation) == [7, 7]
    assert numbers(dataset.as_integers().validation) == [7, 7]


def test_a_file_with_half_a_validation_split(tmp_path):
    source = hdf5(tmp_path / "data.h5", 5, validation_x=np.zeros((2, 1), np.float32))
    with pytest.raises(UsageError, match=r"no dataset validation/y, expected train/x, .*validation/y"):
        source.open()


@pytest.mark.parametrize("name", ["digits", "synthetic", "hdf5"])
def test_copies_have_the_same_samples_and_batches_of_their_own(tmp_path, name):
    makes = {"digits": SOURCES["digits"], "synthetic": partial(SOURCES["synthetic"], shape=(3,), classes=4, samples=20)}
    split = makes.get(name, partial(hdf5, tmp_path / "data.h5", 20))().open().train
    indices = np.arange(5, 15)
    first, second = split.gather(indices), split.copy().gather(indices)
    assert np.array_equal(first.inputs, second.inputs)
    assert np.array_equal(first.targets, second.targets)
    assert not np.shares_memory(first.inputs, second.inputs)
    assert not np.shares_memory(first.targets, second.targets)


def test_indices_outside():
    subset = Subset(numbered(9).train, np.array([2, 5]))
    for index in (-1, 2):
        with pytest.raises(IndexError):
            subset.gather(np.array([index]))
