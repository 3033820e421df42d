"""Samples that several nodes keep together: who has which, and how a split takes them out of several memories."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.config import from_dict
from mpidl.data import ArraySplit, Augmentation, CachedSplit, Dataset, Normalisation, augmented, in_memory, normalised
from mpidl.data.cached import AHEAD, part
from mpidl.errors import UsageError

SAMPLES = 37


@given(samples=st.integers(1, 500), chunk=st.integers(1, 64), count=st.integers(1, 40))
def test_parts_are_whole_chunks_as_equal_as_possible(samples, chunk, count):
    parts = [part(samples, chunk, number, count) for number in range(count)]
    assert [row for each in parts for row in range(*each)] == list(range(samples))
    assert all(each.start % chunk == 0 or each.start == samples for each in parts)
    sizes = [-(-each.size // chunk) for each in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


class Pieces:
    """Stands in for the memory of several nodes: a batch's samples come in another order, in memory used again."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets
        self.asked, self.under_way = [], []

    def ask(self, indices):
        self.asked.append(indices.tolist())
        self.under_way.append(self)
        order = np.random.default_rng(len(self.asked)).permutation(len(indices))
        store = self

        class Coming:
            def result(self):
                rows = np.empty_like(order)
                rows[order] = np.arange(len(order))
                return store.inputs[indices[order]], store.targets[indices[order]], rows

            def release(self):
                store.under_way.pop()

        return Coming()


@pytest.fixture
def dataset():
    random = np.random.default_rng(3)
    inputs, targets = random.integers(0, 256, (SAMPLES, 5, 3), np.uint8), random.integers(0, 9, SAMPLES)
    split = ArraySplit(inputs, targets)
    return Dataset("bytes", (5, 3), 9, split, split)


def distributed(dataset):
    """Return the dataset with its training samples in pieces, and these."""
    found = in_memory(dataset, distributed=True)
    assert isinstance(found.train, CachedSplit)
    reader = dataset.train.as_integers().gather(np.arange(SAMPLES))
    pieces = Pieces(reader.inputs.copy(), reader.targets.copy())
    found.train.cached.use_store(pieces)
    return found, pieces


def changed(dataset):
    return normalised(augmented(dataset, Augmentation(reflect=True, noise=0.1), 5), Normalisation(0.3, 0.7))


@pytest.mark.parametrize("change", [lambda data: data, changed, lambda data: data.as_integers()])
@given(batches=st.lists(st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=9), min_size=1, max_size=6))
def test_batches_are_those_of_the_source(change, batches):
    random = np.random.default_rng(3)
    split = ArraySplit(random.integers(0, 256, (SAMPLES, 5, 3), np.uint8), random.integers(0, 9, SAMPLES))
    data = Dataset("bytes", (5, 3), 9, split, split)
    found, pieces = distributed(data)
    mine, its = change(found).train, change(data).train
    parts = [np.array(each) for each in batches]
    for own, indices in zip(mine.in_turn(parts), parts, strict=True):
        expected = its.gather(indices)
        assert own.inputs.dtype == expected.inputs.dtype
        assert own.inputs.tobytes() == expected.inputs.tobytes()
        assert own.targets.tobytes() == expected.targets.tobytes()
    assert pieces.asked == batches
    assert pieces.under_way == []


def test_each_batch_is_asked_for_once_and_ahead(dataset):
    found, pieces = distributed(dataset)
    split = found.train
    assert split.lookahead == split.copy().lookahead == split.as_integers().lookahead == AHEAD
    assert found.as_double().train.lookahead == AHEAD
    parts = [np.arange(start, start + 4) for start in range(0, 20, 4)]
    for number, _ in enumerate(split.in_turn(parts)):
        assert len(pieces.asked) == min(len(parts), number + 1 + AHEAD)
    split.gather(parts[0])
    assert len(pieces.asked) == len(parts) + 1


def test_the_checksum_is_that_of_the_source(dataset):
    assert distributed(dataset)[0].train.checksum() == dataset.train.checksum()


def test_a_process_alone_keeps_all_samples(dataset):
    split = in_memory(dataset, distributed=True).train
    indices = np.array([3, 36, 3])
    split.prepare(indices)
    assert split.gather(indices).inputs.tobytes() == dataset.train.gather(indices).inputs.tobytes()


def test_other_ways_to_keep_are_one_line():
    sections = {
        "data": {"source": "digits", "keep": "spread"},
        "model": {"layer": [{"type": "dense", "units": 10}]},
    }
    with pytest.raises(UsageError) as error:
        from_dict(sections)
    assert str(error.value).startswith("data.keep: ")
    assert "distributed" in str(error.value)
    assert "\n" not in str(error.value)
