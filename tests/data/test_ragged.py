"""Bags of ids of varying length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpidl
from mpidl.data import Ragged, normalised
from mpidl.data.preprocessing import Normalisation
from mpidl.errors import MpidlError, UsageError

ENDS = np.iinfo(np.int64)
IDS = st.integers(ENDS.min, ENDS.max)
BAGS = st.lists(st.lists(IDS, max_size=5), min_size=1, max_size=9)


def lists(bags):
    """Return a Ragged as lists of ids."""
    assert bags.values.dtype == bags.offsets.dtype == np.int64
    return [bags.values[start:stop].tolist() for start, stop in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


@given(BAGS, st.data())
def test_chosen_bags_are_those_of_lists(bags, data):
    ragged = Ragged.of(bags)
    assert lists(ragged) == bags
    assert (len(ragged), ragged.shape, ragged.dtype) == (len(bags), (len(bags),), np.int64)
    chosen = data.draw(st.lists(st.integers(0, len(bags) - 1), max_size=12))
    assert lists(ragged.take(np.array(chosen, np.int64))) == [bags[each] for each in chosen]
    part = data.draw(st.slices(len(bags)))
    assert lists(ragged[part]) == bags[part]
    assert lists(Ragged.joined([ragged, ragged[part]])) == bags + bags[part]


def test_no_bags_and_no_ids():
    assert lists(Ragged.of([])) == []
    assert lists(Ragged.of([[], []])) == [[], []]
    assert lists(Ragged([], [0, 0])) == [[]]
    assert lists(Ragged.joined([])) == []


@pytest.mark.parametrize("dtype", ["int8", "uint16", ">i4", "uint64"])
def test_integers_of_any_type(dtype):
    assert lists(Ragged(np.array([3, 1, 2], dtype), np.array([0, 1, 3], dtype))) == [[3], [1, 2]]


@pytest.mark.parametrize(
    ("values", "offsets", "line"),
    [
        ([0.5], [0, 1], r"Ragged.values: float64 of shape \(1,\), expected integers of shape \(n,\)"),
        (["a"], [0, 1], "Ragged.values: <U1 of shape"),
        ([[1]], [0, 1], r"Ragged.values: int64 of shape \(1, 1\)"),
        ([2**63], [0, 1], f"Ragged.values: {2**63}, expected at most {2**63 - 1}"),
        ([1, 2**64], [0, 2], f"Ragged.values: {2**64}, expected .*int64"),
        ([2**63, -1], [0, 2], f"Ragged.values: {2**63}, expected .*int64"),
        ([1], [], "Ragged.offsets: none, expected one for each bag"),
        ([1, 2], [1, 2], "Ragged.offsets: the first is 1, expected 0"),
        ([1, 2], [0, 2, 1, 2], "Ragged.offsets: 1 at index 2 after 2, expected ascending ones"),
        ([1, 2], [0, 1], "Ragged.offsets: the last is 1, expected 2, the number of ids"),
        ([1, 2], [0, 3], "Ragged.offsets: the last is 3, expected 2"),
    ],
)
def test_what_is_wrong_is_one_line(values, offsets, line):
    with pytest.raises(UsageError, match=line) as raised:
        Ragged(values, offsets)
    assert "\n" not in str(raised.value)


BAG_LISTS = [[5, 6], [], [7], [], [8, 9, 9]]


def test_arrays_of_bags():
    bags, labels = Ragged.of(BAG_LISTS), np.arange(5) % 2
    dataset = mpidl.Arrays((bags, labels), (bags[:2], labels[:2])).open()
    assert (dataset.input_shape, dataset.classes) == ((), 2)
    for split in (dataset.train, dataset.train.as_integers(), dataset.train.as_double(), dataset.train.copy()):
        batch = split.gather(np.array([4, 1, 0]))
        assert lists(batch.inputs) == [[8, 9, 9], [], [5, 6]]
        assert batch.targets.tolist() == [0, 1, 0]
        assert batch.total == 3
        assert lists(split.gather(np.array([1, 3])).inputs) == [[], []]
    with pytest.raises(IndexError):
        dataset.train.gather(np.array([5]))
    other = mpidl.Arrays((Ragged.of([[5, 7], *BAG_LISTS[1:]]), labels), (bags[:2], labels[:2])).open()
    assert other.train.checksum() != dataset.train.checksum()


def test_what_does_not_fit_bags_is_one_line():
    bags, labels = Ragged.of(BAG_LISTS), np.zeros(5, int)
    with pytest.raises(UsageError, match="train targets: 4 targets, expected 5 as in train inputs"):
        mpidl.Arrays((bags, labels[:4]), (bags, labels)).open()
    with pytest.raises(UsageError, match=r"test inputs: shape \(3,\) per sample, expected \(\)"):
        mpidl.Arrays((bags, labels), (np.zeros((5, 3), int), labels)).open()
    dataset = mpidl.Arrays((bags, labels), (bags, labels)).open()
    with pytest.raises(UsageError, match=r"data\.normalise: bags of ids, expected arrays of numbers"):
        normalised(dataset, Normalisation(mean=0.5))
    with pytest.raises(UsageError, match="'memory' needs batches of arrays without weights, expected 'files'"):
        mpidl.data.in_memory(dataset).train.load()


class Samples:
    """Samples by number: a bag of ids among other inputs, and a label."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(BAG_LISTS)

    def __getitem__(self, index):
        return self.make(BAG_LISTS[index], index), index % 2


def test_samples_with_bags_are_joined():
    dataset = mpidl.Indexed(Samples(lambda bag, index: Ragged.of([bag]))).open()
    batch = dataset.train.gather(np.array([4, 1]))
    assert dataset.input_shape == ()
    assert lists(batch.inputs) == [[8, 9, 9], []]
    assert batch.targets.tolist() == [0, 1]
    assert batch.total == 2


def test_bags_beside_other_inputs():
    made = Samples(lambda bag, index: {"numbers": np.full(2, index, np.float32), "bags": Ragged.of([bag])})
    batch = mpidl.Indexed(made).open().train.gather(np.array([2, 3]))
    assert lists(batch.inputs["bags"]) == [[7], []]
    assert batch.inputs["numbers"].tolist() == [[2, 2], [3, 3]]
    assert batch.total == 2


def test_bags_as_mere_arrays_are_one_line():
    with pytest.raises(MpidlError, match=r"samples of shapes .*, expected a mpidl.data.Ragged of each, or a collate"):
        mpidl.Indexed(Samples(lambda bag, index: np.array(bag, int))).open().train.gather(np.array([0, 1]))
