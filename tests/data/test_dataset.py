"""Arrays from Python are checked as files are, and gathered into batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from mpidl.data import Arrays, ArraySplit, Batch, Dataset, Split
from mpidl.errors import UsageError


@given(st.integers(1, 40), st.lists(st.integers(0, 2**20), min_size=1, max_size=50), st.sampled_from("Bfde"))
def test_gather_takes_the_samples_asked_for(samples, picks, dtype):
    random = np.random.default_rng(samples)
    inputs = (random.random((samples, 3, 5)) * 255).astype(dtype)
    labels = random.integers(0, 7, samples)
    indices = np.array(picks) % samples
    batch = ArraySplit(inputs, labels).gather(indices)
    expected = inputs[indices].astype(np.float32) * (np.float32(1 / 255) if dtype == "B" else np.float32(1))
    assert isinstance(batch, Batch)
    assert batch.inputs.dtype == np.float32
    assert batch.targets.dtype == np.int64
    assert np.array_equal(batch.inputs, expected)
    assert np.array_equal(batch.targets, labels[indices])


def test_float_targets_stay_floats():
    targets = np.arange(12.0).reshape(6, 2)
    batch = ArraySplit(np.zeros((6, 3)), targets).gather(np.array([5, 0]))
    assert batch.targets.dtype == np.float32
    assert batch.targets.tolist() == [[10, 11], [0, 1]]


def test_strided_inputs_are_taken_rightly():
    inputs = np.arange(60, dtype=np.uint8).reshape(3, 4, 5).T
    batch = ArraySplit(inputs, np.arange(5)).gather(np.array([4, 2]))
    assert np.array_equal(batch.inputs, inputs[[4, 2]] * np.float32(1 / 255))


def test_buffers_are_reused_by_batches_of_the_same_size():
    split = ArraySplit(np.zeros((9, 2), np.uint8), np.zeros(9, int))
    first, other, second = (split.gather(np.arange(size)) for size in (4, 3, 4))
    assert first.inputs is second.inputs
    assert first.targets is second.targets
    assert not np.shares_memory(first.inputs, other.inputs)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_gather_allocates_nothing_once_warm(dtype, order, peak):
    split = ArraySplit(np.ones((500, 28, 28), dtype, order), np.ones(500, np.uint8))
    indices = np.random.default_rng(0).permutation(500)[:128]
    assert peak(lambda: split.gather(indices)) < 2048  # a batch of bytes is 100 KB


@pytest.mark.parametrize("indices", [[0, 9], [-1, 3], [10**6]])
def test_indices_outside_are_refused(indices):
    split = ArraySplit(np.zeros((9, 2), np.uint8), np.zeros(9, int))
    with pytest.raises(IndexError, match=r"outside \[0, 9\)"):
        split.gather(np.array(indices))


@pytest.mark.parametrize("first", ["load", "gather", "prefetch"])
def test_inputs_are_read_once_and_when_needed(first):
    reads = []

    def read() -> np.ndarray:
        reads.append(None)
        return np.full((9, 2), 255, np.uint8)

    split = ArraySplit(read, np.zeros(9, int))
    assert split.samples == 9
    assert not reads
    indices = np.arange(4)
    split.load() if first == "load" else getattr(split, first)(indices)
    assert len(reads) == 1
    assert np.all(split.gather(indices).inputs == 1)
    assert len(reads) == 1


INPUTS, LABELS = np.arange(24.0).reshape(6, 4), np.arange(6) % 3
EXPECTED = "expected integers of shape (samples, ...) or floats of shape (samples, outputs) with outputs >= 1"


def fails(line, make):
    with pytest.raises(UsageError) as error:
        make()
    assert str(error.value) == line


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def masked(array, place):
    array = np.ma.array(array)
    array[place] = np.ma.masked
    return array


def test_masked_arrays_without_a_masked_value_are_arrays():
    split = ArraySplit(np.ma.array(INPUTS), np.ma.array(LABELS, mask=False))
    assert np.array_equal(split.gather(np.arange(6)).inputs, INPUTS)


def test_lists_become_arrays():
    split = ArraySplit(INPUTS.tolist(), LABELS.tolist())
    assert np.array_equal(split.gather(np.arange(6)).inputs, INPUTS)
    data = Arrays((INPUTS.tolist(), LABELS.tolist()), [INPUTS, LABELS]).open()
    assert (data.input_shape, data.classes, data.train.samples) == ((4,), 3, 6)


@pytest.mark.parametrize(
    ("inputs", "targets", "line"),
    [
        (INPUTS, LABELS[:5], "targets: 5 targets, expected 6 as in inputs"),
        (INPUTS, LABELS * 1.0, f"targets: float64 of shape (6,), {EXPECTED}"),
        (INPUTS, LABELS > 1, f"targets: bool of shape (6,), {EXPECTED}"),
        (INPUTS, [], f"targets: float64 of shape (0,), {EXPECTED}"),
        (INPUTS, INPUTS[:, :0], f"targets: {INPUTS.dtype} of shape (6, 0), {EXPECTED}"),
        (INPUTS[:, 0], LABELS, "inputs: shape (6,), expected (samples, ...) with no size 0 per sample"),
        (INPUTS.astype(str), LABELS, "inputs: <U32, expected floats, bytes (uint8) or other integers"),
        (changed(INPUTS, (2, 3), np.nan), LABELS, "inputs: NaN or infinity in sample 2, expected finite numbers"),
        (changed(INPUTS, (5, 0), -np.inf), LABELS, "inputs: NaN or infinity in sample 5, expected finite numbers"),
        (INPUTS * 1e300, LABELS, "inputs: NaN or infinity in sample 0, expected finite numbers"),
        (INPUTS, changed(INPUTS, (1, 1), np.inf), "targets: NaN or infinity in sample 1, expected finite numbers"),
        (masked(INPUTS, (3, 2)), LABELS, "inputs: masked value in sample 3, expected finite numbers"),
        ([*INPUTS[:2], masked(INPUTS[2], 1)], LABELS[:3], "inputs: masked value in sample 2, expected finite numbers"),
        (INPUTS, masked(LABELS, 4), "targets: masked value in sample 4, expected finite numbers"),
        (csr_matrix(INPUTS), LABELS, "inputs: a csr_matrix, expected an array, as its method toarray() returns it"),
        (object(), LABELS, "inputs: an object, expected an array"),
    ],
)
def test_arrays_that_are_wrong_are_one_line(inputs, targets, line):
    fails(line, lambda: ArraySplit(inputs, targets))


def test_arrays_of_different_lengths_within_are_one_line():
    with pytest.raises(UsageError, match=r"^inputs: .*inhomogeneous.*, expected an array$"):
        ArraySplit([[1], [2, 3]], [0, 1])


def test_what_a_function_returns_is_checked():
    split = ArraySplit(lambda: changed(INPUTS, (4, 1), np.nan), LABELS)
    fails("inputs: NaN or infinity in sample 4, expected finite numbers", split.load)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"train": None},
            "Dataset.train: expected a Split, such as mpidl.data.ArraySplit(inputs, targets), found None",
        ),
        (
            {"train": ArraySplit(INPUTS, changed(LABELS, 4, 7))},
            "Dataset.train: targets: label 7 at index 4, expected 0 to 2",
        ),
        (
            {"test": ArraySplit(INPUTS, changed(np.stack([LABELS, LABELS], 1), (5, 1), 3))},
            "Dataset.test: targets: label 3 at index 5, expected 0 to 2",
        ),
        ({"classes": None}, "Dataset.train: classes are None, expected their number: the targets are labels"),
        ({"classes": 0}, "Dataset.classes: expected int >= 1, found 0"),
        ({"train": ArraySplit(INPUTS, INPUTS)}, "Dataset.train: classes are 3, expected None: the targets are floats"),
        ({"input_shape": (4.5,)}, "Dataset.input_shape: expected list of int >= 1, found (4.5,)"),
    ],
)
def test_a_dataset_of_splits_that_do_not_fit_is_one_line(changes, line):
    split = ArraySplit(INPUTS, LABELS)
    fails(
        line,
        lambda: Dataset(**{"name": "test", "input_shape": (4,), "classes": 3, "train": split, "test": split} | changes),
    )


def test_a_split_without_samples():
    class Empty(Split):
        samples = 0

        def gather(self, indices, epoch=0):
            raise NotImplementedError

    fails(
        "Dataset.test: no samples, expected at least one",
        lambda: Dataset("test", (4,), 3, ArraySplit(INPUTS, LABELS), Empty()),
    )


def test_no_test_data():
    expected = "test: expected (inputs, targets), found None"
    fails(expected, lambda: Arrays((INPUTS, LABELS), None).open())
    empty = (INPUTS[:0], LABELS[:0])
    fails("test inputs: no samples, expected at least one", lambda: Arrays((INPUTS, LABELS), empty).open())


@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", ">i4"])
def test_integers_stay_integers_where_they_are_asked_for(dtype):
    inputs = (np.arange(24).reshape(6, 4) * 10).astype(dtype)
    split, order = ArraySplit(inputs, LABELS), np.array([5, 0, 2])
    whole = split.as_integers().gather(order).inputs
    assert whole.dtype.kind in "iu"
    assert np.array_equal(whole, inputs[order])
    floats = split.gather(order).inputs
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, inputs[order] / (255 if dtype == "u1" else 1), rtol=1e-6)
    assert ArraySplit(INPUTS, LABELS).as_integers().gather(order).inputs.dtype == np.float32
