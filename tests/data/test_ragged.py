"""Bags of ids of varying length: in memory, and in HDF5, .npz and .npy files."""

import h5py
import numpy as np
import pytest
from data_files import fails, hdf5_file, source_of
from hypothesis import given
from hypothesis import strategies as st

import mpidl
from mpidl.data import Hdf5, Ragged, normalised
from mpidl.data.preprocessing import Normalisation
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import MpidlError, UsageError

ENDS = np.iinfo(np.int64)
IDS = st.integers(ENDS.min, ENDS.max)
ANY_BAGS = st.lists(st.lists(IDS, max_size=5), min_size=1, max_size=9)


def lists(bags):
    """Return a Ragged as lists of ids."""
    assert bags.values.dtype == bags.offsets.dtype == np.int64
    return [bags.values[start:stop].tolist() for start, stop in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


@given(ANY_BAGS, st.data())
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
    fails(lambda: Ragged(values, offsets), line)


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
    few = mpidl.Arrays((bags, labels[:4]), (bags, labels))
    fails(few.open, "train targets: 4 targets, expected 5 as in train inputs")
    other = mpidl.Arrays((bags, labels), (np.zeros((5, 3), int), labels))
    fails(other.open, r"test inputs: shape \(3,\) per sample, expected \(\)")
    dataset = mpidl.Arrays((bags, labels), (bags, labels)).open()
    line = r"data\.normalise: bags of ids, expected arrays of numbers"
    fails(lambda: normalised(dataset, Normalisation(mean=0.5)), line)
    line = "'memory' needs batches of arrays without weights, expected 'files'"
    fails(mpidl.data.in_memory(dataset).train.load, line)


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


random = np.random.default_rng(5)
BAGS = {
    part: [random.integers(-9, 9, random.integers(4)).tolist() for _ in range(n)]
    for part, n in (("train", 23), ("test", 5))
}
BAGS["train"][:3] = [[], [2**63 - 1, -(2**63)], []]
FORMS = ("hdf5", "two hdf5", "npz", "npy")


def arrays(part, bags, dtype="int64"):
    ragged = Ragged.of(bags)
    ids = ragged.values if dtype == "int64" else np.clip(ragged.values, -9, 9).astype(dtype)
    return {f"{part}/x": ids, f"{part}/x_offsets": ragged.offsets, f"{part}/y": np.arange(len(bags)) % 2}


def whole(dtype="int64"):
    return arrays("train", BAGS["train"], dtype) | arrays("test", BAGS["test"], dtype)


def source(form, folder, made):
    """Write arrays in a form, and return the source that reads them."""
    if form != "two hdf5":
        return source_of(form, folder, made)
    labels = made["train/y"]
    first = {key: each for key, each in made.items() if "test" in key}
    first |= arrays("train", BAGS["train"][:9]) | {"train/y": labels[:9]}
    second = arrays("train", BAGS["train"][9:]) | {"train/y": labels[9:]}
    return Hdf5([str(hdf5_file(folder / name, each)) for name, each in (("a.h5", first), ("b.h5", second))])


@pytest.mark.parametrize("form", FORMS)
def test_bags_in_files(tmp_path, form):
    dataset = source(form, tmp_path, whole()).open()
    assert (dataset.input_shape, dataset.classes) == ((), 2)
    for part, bags in BAGS.items():
        split = getattr(dataset, part)
        assert split.samples == len(bags)
        for same in (split, split.as_integers().copy()):
            same.prefetch(np.arange(2, 5))
            last = len(bags) - 1
            for chosen in ([2, 4], [last, 0, last], [0, 2], list(range(len(bags)))):
                batch = same.gather(np.array(chosen))
                assert lists(batch.inputs) == [bags[each] for each in chosen]
                assert batch.targets.tolist() == [each % 2 for each in chosen]
            assert same.checksum() == split.checksum()
    with pytest.raises(IndexError):
        dataset.train.gather(np.array([23]))


@pytest.mark.parametrize("form", ["hdf5", "npz", "npy"])
def test_ids_of_other_types(tmp_path, form):
    split = source(form, tmp_path, whole("int8")).open().train
    expected = [np.clip(np.array(bag, object), -9, 9).tolist() for bag in BAGS["train"]]
    assert lists(split.gather(np.arange(23)).inputs) == expected


def falling(offsets):
    return offsets[[0, 2, 1, *range(3, len(offsets))]]


WRONG = {
    "ids": ("x", lambda ids: ids.astype(float), r"x(\.npy)?: float64 of shape .*, expected integers of shape \(n,\)"),
    "rows": ("x", lambda ids: ids[:, None], r"x(\.npy)?: int64 of shape \(.*, 1\), expected integers"),
    "offsets": ("x_offsets", lambda offsets: offsets + 0.5, r"x_offsets(\.npy)?: float64 of shape"),
    "falling": ("x_offsets", falling, r"x_offsets.*: 0 at index 2 after 2, expected ascending ones"),
    "beginning": ("x_offsets", lambda offsets: offsets + 1, r"x_offsets.*: the first is 1, expected 0"),
    "end": (
        "x_offsets",
        lambda offsets: offsets[:-3],
        r"x_offsets.*: the last is \d+, expected \d+, the number of ids",
    ),
    "labels": ("y", lambda labels: labels[1:], r"y.*: 22 targets, expected 23 as in .*x"),
}


@pytest.mark.parametrize("form", ["hdf5", "npz", "npy"])
@pytest.mark.parametrize("case", WRONG)
def test_files_that_are_wrong_are_one_line(tmp_path, form, case):
    key, change, line = WRONG[case]
    made = whole()
    made[f"train/{key}"] = change(made[f"train/{key}"])
    with pytest.raises(UsageError, match=f"train/{line}") as raised:
        source(form, tmp_path, made).open()
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_files_of_which_some_have_offsets(tmp_path):
    paths = source("two hdf5", tmp_path, whole()).path
    with h5py.File(paths[1], "a") as file:
        del file["train/x_offsets"]
    fails(Hdf5(paths).open, r"b.h5: no dataset train/x_offsets, expected one as in .*a\.h5")


def test_ids_beyond_int64_are_one_line(tmp_path):
    made = whole()
    made["train/x"] = made["train/x"].astype(np.uint64)
    split = source("hdf5", tmp_path, made).open().train
    with pytest.raises(MpidlError, match=rf"data.h5: train/x: {2**63}, expected at most {2**63 - 1} \(int64\)"):
        split.gather(np.array([0, 1]))


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_bags_to_predict(tmp_path, suffix):
    path, ragged = tmp_path / f"data{suffix}", Ragged.of(BAGS["test"])
    made = {"x": ragged.values, "x_offsets": ragged.offsets}
    if suffix == ".npz":
        np.savez(path, **made)
    else:
        hdf5_file(path, made)
    split = open_inputs(path)
    assert (split.samples, split.input_shape) == (5, ())
    batch = split.as_integers().gather(np.array([1, 4, 2]))
    assert lists(batch.inputs) == [BAGS["test"][each] for each in (1, 4, 2)]
    assert batch.targets is None
