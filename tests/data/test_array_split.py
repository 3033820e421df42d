from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import ArraySplit, Batch


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


def test_bytes_become_the_unit_interval():
    batch = ArraySplit(np.arange(256, dtype=np.uint8).reshape(256, 1), np.zeros(256, int)).gather(np.arange(256))
    assert batch.inputs[0, 0] == 0
    assert batch.inputs[255, 0] == 1
    assert np.all(np.diff(batch.inputs[:, 0]) > 0)


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
