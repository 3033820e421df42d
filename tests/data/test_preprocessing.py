"""Augmented and normalised inputs."""

import threading

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
from data_files import hdf5_file
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import (
    ArraySplit,
    Augmentation,
    Augmented,
    Batch,
    Dataset,
    Hdf5,
    Normalisation,
    Portions,
    Synthetic,
    augmented,
    normalised,
)
from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.distortion import add_noise, rotate_and_shift, shift
from mpidl.errors import UsageError

ALL = Augmentation(reflect=True, rotate=20.0, translate=2, noise=0.1)
SAMPLES = 30
shapes = st.tuples(st.integers(3, 9), st.integers(3, 9), st.sampled_from([1, 2, 3]))
augmentations = st.builds(
    Augmentation,
    reflect=st.booleans(),
    rotate=st.sampled_from([0.0, 30.0]),
    translate=st.integers(0, 2),
    noise=st.sampled_from([0.0, 0.2]),
)


def images(shape, seed=0):
    return np.random.default_rng(seed).random(shape, np.float32)


def split(shape=(6, 5)):
    return ArraySplit(images((SAMPLES, *shape)), np.arange(SAMPLES))


def one(loop, image, *arguments):
    """Apply a loop over one image to the middle one of three images."""
    batch = np.stack([image] * 3)
    out = np.full_like(batch, 7)
    loop(batch.reshape(-1), out.reshape(-1), image.size, image.shape, *arguments)
    assert np.all(out[[0, 2]] == 7)
    return out[1]


@given(
    augmentations,
    st.integers(0, 2**70),
    st.integers(0, 99),
    st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=9),
    st.sampled_from([(6, 5), (6, 5, 3)]),
)
def test_it_depends_on_seed_epoch_and_sample_alone(augmentation, seed, epoch, picks, shape):
    everything = Augmented(split(shape), augmentation, seed).gather(np.arange(SAMPLES), epoch).inputs
    other = Augmented(split(shape), augmentation, seed)
    other.gather(np.array(picks), epoch + 1)
    batch = other.gather(np.array(picks), epoch)
    assert np.array_equal(batch.inputs, everything[picks])
    assert batch.targets.tolist() == picks
    assert batch.inputs.dtype == np.float32


def test_seed_epoch_and_sample_each_make_a_difference():
    same = ArraySplit(np.tile(images((1, 6, 5)), (SAMPLES, 1, 1)), np.arange(SAMPLES))
    made = [
        Augmented(same, ALL, seed).gather(np.arange(SAMPLES), epoch).inputs.copy()
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    assert len(np.unique(np.concatenate(made), axis=0)) == 3 * SAMPLES


@given(shapes, st.integers(0, 3))
def test_settings_that_are_off_change_no_bit(shape, epoch):
    inner = split(shape)
    batch = Augmented(inner, Augmentation(), 3).gather(np.arange(SAMPLES), epoch)
    assert np.array_equal(batch.inputs.view(np.uint32), inner.gather(np.arange(SAMPLES)).inputs.view(np.uint32))


@given(shapes, st.data())
def test_shift_moves_exactly_and_fills_with_zeros(shape, data):
    image = images(shape) + 1
    down, right = (data.draw(st.integers(1 - size, size - 1)) for size in shape[:2])
    flipped = data.draw(st.booleans())
    expected = np.zeros_like(image)
    for y in range(max(0, down), min(shape[0], shape[0] + down)):
        for x in range(max(0, right), min(shape[1], shape[1] + right)):
            expected[y, x] = (image[:, ::-1] if flipped else image)[y - down, x - right]
    assert np.array_equal(one(shift, image, flipped, down, right), expected)
    assert np.array_equal(one(rotate_and_shift, image, flipped, down, right, 0.0), expected)


@given(shapes, st.floats(0.1, 179.9).filter(lambda degrees: degrees % 45 > 0.01), st.booleans())
def test_rotation_equals_scipys(shape, degrees, flipped):
    image = images(shape)
    source = image[:, ::-1] if flipped else image
    expected = scipy.ndimage.rotate(source.astype(float), degrees, reshape=False, order=1)
    assert np.allclose(one(rotate_and_shift, image, flipped, 0, 0, degrees), expected, atol=1e-5)


def test_half_of_the_images_are_reflected_and_all_shifts_are_as_likely():
    marked = np.zeros((1, 9, 9), np.float32)
    marked[0, 4, 4], marked[0, 4, 5] = 1, 2
    samples = 20_000
    inner = ArraySplit(np.broadcast_to(marked, (samples, 9, 9)), np.zeros(samples, int))
    made = Augmented(inner, Augmentation(reflect=True, translate=2), 0).gather(np.arange(samples)).inputs
    _, down, right = np.nonzero(made == 1)
    flipped = made[np.arange(samples), down, right - 1] == 2
    counts = np.zeros((2, 5, 5))
    np.add.at(counts, (flipped.astype(int), down - 2, right - 2), 1)
    # Chi-squared with 49 degrees of freedom: beyond 94 with probability 1e-4.
    assert ((counts - samples / 50) ** 2 / (samples / 50)).sum() < 94


def test_angles_are_uniform():
    point = np.zeros((1, 41, 41), np.float32)
    point[0, 18:23, 36:41] = 1
    samples = 3000
    inner = ArraySplit(np.broadcast_to(point, (samples, 41, 41)), np.zeros(samples, int))
    made = Augmented(inner, Augmentation(rotate=30.0), 0).gather(np.arange(samples)).inputs
    y, x = np.mgrid[20:-21:-1, -20:21]
    angles = np.degrees(np.arctan2((made * y).sum((1, 2)), (made * x).sum((1, 2))))
    assert scipy.stats.kstest(angles, scipy.stats.uniform(-30, 60).cdf).statistic < 0.04


def test_noise_is_normal_with_the_deviation_asked_for():
    values = np.zeros(1_000_000, np.float32)
    add_noise(values, 0, values.size, np.uint64(1), 0.5)
    assert abs(values.mean()) < 0.5 * 4e-3
    assert abs(values.std() / 0.5 - 1) < 3e-3
    assert scipy.stats.kstest(values / 0.5, "norm").statistic < 2e-3
    # The lowest layer's tail and its edge: about 577 beyond 3.4426.
    assert 480 < np.sum(np.abs(values) > 0.5 * 3.442619855899) < 680
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4e-3


def test_noise_of_neighbours_is_unrelated():
    noise = Augmented(ArraySplit(np.zeros((200, 40, 50)), np.zeros(200, int)), Augmentation(noise=1.0), 0)
    made = [noise.gather(np.arange(200), epoch).inputs.reshape(200, -1).copy() for epoch in (0, 1)]
    related = np.abs(np.corrcoef(np.concatenate(made)) - np.eye(400))
    assert related.max() < 0.13  # 80,000 pairs with a standard deviation of 0.022


def test_the_samples_to_test_with_stay_as_they_are():
    dataset = Synthetic(samples=20, test_samples=8, shape=(4, 4)).open()
    made = augmented(dataset, ALL, 0)
    assert made.test is dataset.test
    assert isinstance(made.train, Augmented)
    assert (made.train.samples, made.train.contiguous) == (20, False)
    assert augmented(dataset, Augmentation(), 0) is dataset


@pytest.mark.parametrize(
    ("shape", "keys", "line"),
    [
        ((64,), {"reflect": True}, r"^data\.augment: inputs of shape \(64,\), expected images \(height, width\) or "),
        ((2, 3, 4, 5), {"noise": 0.1}, r"^data\.augment: inputs of shape \(2, 3, 4, 5\), expected images "),
        ((9, 5), {"translate": 5}, r"^data\.augment\.translate: 5 pixels, expected less than the images' 5$"),
    ],
)
def test_what_can_not_be_augmented(shape, keys, line):
    with pytest.raises(UsageError, match=line):
        augmented(Synthetic(shape=shape).open(), Augmentation(**keys), 0)


def test_gather_allocates_nothing_once_warm(peak):
    made = Augmented(split((28, 28)), ALL, 0)
    indices = np.arange(20)
    assert peak(lambda: made.gather(indices)) < 2048  # a batch is 63 KB
    assert made.gather(indices).inputs is made.gather(indices).inputs


class Watched(Split):
    """A split that overwrites its only buffer and records which thread calls which method."""

    def __init__(self):
        self.samples, self.contiguous = SAMPLES, True
        self.calls, self.busy = [], threading.Lock()
        self._buffer = np.empty((4, 3, 3), np.float32)
        self.go = threading.Event()
        self.go.set()

    def prefetch(self, indices):
        self.calls.append(("prefetch", int(indices[0]), threading.current_thread().name))

    def gather(self, indices, epoch=0):
        assert self.busy.acquire(blocking=False)
        assert self.go.wait(60)
        self.calls.append(("gather", int(indices[0]), threading.current_thread().name))
        self._buffer[: len(indices)] = indices[:, None, None]
        self.busy.release()
        return Batch(self._buffer[: len(indices)], indices.copy())


def test_batches_are_prepared_ahead_without_touching_the_one_in_use():
    watched = Watched()
    made, order = Augmented(watched, Augmentation(reflect=True), 0), np.arange(28).reshape(7, 4)
    seen = set()
    for number in range(7):
        if number < 6:
            made.prepare(order[number + 1], 5)
        batch = made.gather(order[number], 5)
        made.load()  # when the thread has done what it was given
        assert np.array_equal(batch.inputs[:, 1, 1], order[number])
        assert np.array_equal(batch.targets, order[number])
        seen.add(id(batch.inputs))
    assert sorted(call[1] for call in watched.calls) == list(range(0, 28, 4))
    assert [call[1] for call in watched.calls if not call[2].startswith("augment")] == [0]
    assert len(seen) <= 3


def test_a_batch_of_another_epoch_is_another():
    made = Augmented(split(), ALL, 0)
    indices = np.arange(4)
    made.prepare(indices, 1)
    now = made.gather(indices, 0).inputs.copy()
    assert np.array_equal(now, Augmented(split(), ALL, 0).gather(indices, 0).inputs)
    assert np.array_equal(made.gather(indices, 1).inputs, Augmented(split(), ALL, 0).gather(indices, 1).inputs)


def test_a_minibatch_brings_its_epoch():
    batch = Augmented(split(), ALL, 0).take(Minibatch(np.arange(4), 9, 3))
    assert batch.number == 9
    assert np.array_equal(batch.inputs, Augmented(split(), ALL, 0).gather(np.arange(4), 3).inputs)


def test_what_is_never_gathered_is_forgotten():
    watched = Watched()
    made = Augmented(watched, ALL, 0)
    for first in (0, 4, 8, 12):
        made.prepare(np.arange(first, first + 4))
    assert made.gather(np.arange(12, 16)).targets.tolist() == [12, 13, 14, 15]
    assert len(watched.calls) == 4


def test_the_wrapped_split_is_used_in_order_by_one_at_a_time():
    watched = Watched()
    made = Augmented(watched, ALL, 0)
    watched.go.clear()
    made.prepare(np.arange(4))
    made.prefetch(np.arange(8, 16))
    threading.Timer(0.05, watched.go.set).start()
    made.gather(np.arange(20, 24))
    assert [call[:2] for call in watched.calls] == [("gather", 0), ("prefetch", 8), ("gather", 20)]


def test_an_error_of_a_prepared_batch_is_that_of_gather():
    made = Augmented(split(), ALL, 0)
    made.prepare(np.array([SAMPLES]))
    with pytest.raises(IndexError, match="outside"):
        made.gather(np.array([SAMPLES]))
    assert made.gather(np.array([1])).targets.tolist() == [1]


def test_portions_of_a_file(tmp_path):
    x, y = images((SAMPLES, 4, 4)), np.arange(SAMPLES)
    file = hdf5_file(tmp_path / "data.h5", {"train/x": x, "train/y": y, "test/x": x, "test/y": y})
    dataset = augmented(Hdf5(str(file)).open(), ALL, 0)
    assert isinstance(dataset, Dataset)
    train = dataset.train
    train.load()
    portions = Portions(SAMPLES, 4, 8, seed=1, contiguous=train.contiguous)
    expected = Augmented(ArraySplit(images((SAMPLES, 4, 4)), np.arange(SAMPLES)), ALL, 0)
    batches = [(portions.epoch(number), batch) for number in range(8) for batch in portions.batches(number)]
    train.prefetch(portions.indices(0))
    for place, (epoch, indices) in enumerate(batches):
        if place % 2 == 0 and place // 2 + 1 < 8:
            train.prefetch(portions.indices(place // 2 + 1))
        if place + 1 < len(batches):
            train.prepare(batches[place + 1][1], batches[place + 1][0])
        assert np.array_equal(train.gather(indices, epoch).inputs, expected.gather(indices, epoch).inputs)


def pixels(shape=(5, 7, 3)):
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
    plain, made = pixels(), normalised(pixels(), Normalisation(mean, std))
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
    plain = augmented(pixels(), augmentation, 3)
    made = normalised(augmented(pixels(), augmentation, 3), Normalisation(0.5, 2.0))
    indices = np.arange(9)
    for epoch in range(2):
        made.train.prepare(indices, epoch)
        np.testing.assert_allclose(
            made.train.gather(indices, epoch).inputs, (plain.train.gather(indices, epoch).inputs - 0.5) / 2, rtol=1e-6
        )


def test_nothing_to_do_is_not_done():
    plain = pixels()
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
        normalised(pixels(), normalisation)


def test_nothing_is_allocated_once_warm(peak):
    random = np.random.default_rng(0)
    split = ArraySplit(random.integers(0, 256, (500, 28, 28)).astype(np.uint8), np.zeros(500, int))
    made = normalised(Dataset("pixels", (28, 28), 10, split, split), Normalisation(0.286, 0.353)).train
    indices = np.arange(128)
    assert peak(lambda: made.gather(indices)) < 4096
