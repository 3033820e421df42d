"""Bags of ids in files: HDF5, .npz, and directories of .npy files."""

import h5py
import numpy as np
import pytest
from test_ragged import lists

from mpidl.data import ArrayFiles, Hdf5, Ragged
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import MpidlError, UsageError

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


def write_hdf5(path, made):
    with h5py.File(path, "w") as file:
        for key, array in made.items():
            file[key] = array
    return str(path)


def source(form, folder, made):
    """Write arrays in a form, and return the source that reads them."""
    if form == "hdf5":
        return Hdf5(write_hdf5(folder / "data.h5", made))
    if form == "two hdf5":
        labels = made["train/y"]
        first = {key: each for key, each in made.items() if "test" in key}
        first |= arrays("train", BAGS["train"][:9]) | {"train/y": labels[:9]}
        second = arrays("train", BAGS["train"][9:]) | {"train/y": labels[9:]}
        return Hdf5([write_hdf5(folder / "a.h5", first), write_hdf5(folder / "b.h5", second)])
    if form == "npz":
        np.savez(folder / "data.npz", **made)
        return ArrayFiles(str(folder / "data.npz"))
    for key, array in made.items():
        path = folder / f"{key}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, array)
    return ArrayFiles(str(folder))


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
def test_what_is_wrong_is_one_line(tmp_path, form, case):
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
    with pytest.raises(UsageError, match=r"b.h5: no dataset train/x_offsets, expected one as in .*a\.h5"):
        Hdf5(paths).open()


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
        write_hdf5(path, made)
    split = open_inputs(path)
    assert (split.samples, split.input_shape) == (5, ())
    batch = split.as_integers().gather(np.array([1, 4, 2]))
    assert lists(batch.inputs) == [BAGS["test"][each] for each in (1, 4, 2)]
    assert batch.targets is None
