from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import ArraySplit, Augmentation, Dataset, Normalisation, augmented, normalised
from mpidl.errors import UsageError

SAMPLES = 31


def dataset(shape=(5, 7, 3)):
    random = np.random.default_rng(0)
    splits = (
        ArraySplit(random.integers(0, 256, (SAMPLES, *shape)).astype(np.uint8), np.arange(SAMPLES)) for _ in range(2)
    )
    return Dataset("pixels", shape, SAMPLES, *splits)


@given(
    st.floats(-2, 2) | st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.floats(0.1, 9) | st.lists(st.floats(0.1, 9), min_size=3, max_size=3),
    st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=9),
)
def test_inputs_of_both_splits_are_normalised_however_often_they_are_taken(mean, std, picks):
    plain, made = dataset(), normalised(dataset(), Normalisation(mean, std))
    for ours, theirs in ((made.train, plain.train), (made.test, plain.test)):
        for _ in range(2):
            found, given = ours.gather(np.array(picks)), theirs.gather(np.array(picks))
            np.testing.assert_allclose(
                found.inputs, (given.inputs - np.array(mean)) / np.array(std), rtol=1e-5, atol=1e-5
            )
            assert found.inputs.dtype == np.float32
            np.testing.assert_array_equal(found.targets, given.targets)


def test_images_are_augmented_before():
    augmentation = Augmentation(reflect=True, translate=2)
    plain = augmented(dataset(), augmentation, 3)
    made = normalised(augmented(dataset(), augmentation, 3), Normalisation(0.5, 2.0))
    indices = np.arange(9)
    for epoch in range(2):
        made.train.prepare(indices, epoch)
        np.testing.assert_allclose(
            made.train.gather(indices, epoch).inputs, (plain.train.gather(indices, epoch).inputs - 0.5) / 2, rtol=1e-6
        )


def test_nothing_to_do_is_not_done():
    plain = dataset()
    assert normalised(plain, Normalisation()) is plain


@pytest.mark.parametrize(
    ("normalisation", "text"),
    [
        (Normalisation([0.5, 0.5]), "data.normalise.mean: 2 numbers, expected 1, or 3: one per channel"),
        (Normalisation(std=[0.5]), "data.normalise.std: 1 numbers, expected 1, or 3: one per channel"),
    ],
)
def test_as_many_numbers_as_channels(normalisation, text):
    with pytest.raises(UsageError, match=text):
        normalised(dataset(), normalisation)


def test_nothing_is_allocated_once_warm(peak):
    random = np.random.default_rng(0)
    split = ArraySplit(random.integers(0, 256, (500, 28, 28)).astype(np.uint8), np.zeros(500, int))
    made = normalised(Dataset("pixels", (28, 28), 10, split, split), Normalisation(0.286, 0.353)).train
    indices = np.arange(128)
    assert peak(lambda: made.gather(indices)) < 4096
