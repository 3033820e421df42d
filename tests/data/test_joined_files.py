"""Several HDF5 files are read as one."""

import os
import resource
from itertools import pairwise

import h5py
import numpy as np
import pytest
from data_files import TRAIN
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import Hdf5, Portions
from mpidl.data import hdf5_files as module
from mpidl.errors import UsageError

CUTS = (0, 5, 5, 20, TRAIN)  # the second part is empty


@pytest.fixture
def files(arrays, tmp_path):
    """The training samples in files whose names are in order, the test samples in another; all samples, by key."""
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        with h5py.File(tmp_path / f"part-{number}.h5", "w") as file:
            for key in ("train/x", "train/y"):
                file[key] = arrays[key][start:stop]
    with h5py.File(tmp_path / "test.h5", "w") as file:
        for key in ("test/x", "test/y"):
            file[key] = arrays[key]
    return arrays


def fails(line, *path):
    with pytest.raises(UsageError) as error:
        Hdf5(list(path)).open()
    assert str(error.value) == line


@pytest.mark.parametrize("opened", [1, 32])
@pytest.mark.parametrize("form", ["pattern", "list"])
def test_samples_follow_one_another(files, tmp_path, monkeypatch, form, opened):
    monkeypatch.setattr(module, "OPEN_FILES", opened)
    parts = [f"{tmp_path}/part-{number}.h5" for number in range(4)]
    path = f"{tmp_path}/*.h5" if form == "pattern" else [*parts, f"{tmp_path}/test.h5"]
    dataset = Hdf5(path).open()
    assert (dataset.input_shape, dataset.classes, dataset.train.samples) == ((5, 3), 10, TRAIN)
    for indices in (np.arange(TRAIN), np.array([36, 4, 5, 19, 20, 0]), np.array([6, 4, 5]), np.array([21])):
        batch = dataset.train.gather(indices)
        assert np.array_equal(batch.targets, files["train/y"][indices])
        assert np.array_equal(batch.inputs, files["train/x"][indices] * np.float32(1 / 255))
    assert np.array_equal(dataset.test.gather(np.arange(3)).targets, files["test/y"][:3])


@given(portion=st.integers(1, 40))
def test_a_portion_may_lie_in_several_files(tmp_path_factory, portion):
    path = tmp_path_factory.mktemp("joined")
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        with h5py.File(path / f"{number}.h5", "w") as file:
            for part in ("train", "test"):
                file[f"{part}/x"] = np.arange(start, stop, dtype=np.float32)[:, None]
                file[f"{part}/y"] = np.arange(start, stop)
    split = Hdf5(f"{path}/?.h5").open().train
    portions, seen = Portions(TRAIN, 1, portion, 3, contiguous=True), []
    for number in range(portions.per_epoch):
        split.prefetch(portions.indices(number))
        seen += split.gather(portions.indices(number)).targets.tolist()
    assert sorted(seen) == list(range(TRAIN))


def test_more_files_than_may_be_open(tmp_path):
    for number in range(40):
        with h5py.File(tmp_path / f"{number:02}.h5", "w") as file:
            for part in ("train", "test"):
                file[f"{part}/x"], file[f"{part}/y"] = np.full((2, 1), number, np.float32), np.full(2, number)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 36, before[1]))
    try:
        split = Hdf5(f"{tmp_path}/*.h5").open().train
        assert split.gather(np.arange(80)).targets.tolist() == [number // 2 for number in range(80)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_is_wrong_is_one_line(files, tmp_path):
    keys = "train/x, train/y, test/x, test/y"
    fails(f"data.path: {tmp_path}/none-*.h5: matches no file, expected HDF5 files", f"{tmp_path}/none-*.h5")
    fails("data.path: no files, expected at least one HDF5 file")
    fails(f"data.path: none of 4 files has a dataset test/x, expected {keys}", f"{tmp_path}/part-*.h5")
    with h5py.File(tmp_path / "lacks.h5", "w") as file:
        file["train/x"] = np.zeros((1, 5, 3), np.uint8)
    parts = [f"{tmp_path}/part-*.h5", f"{tmp_path}/test.h5"]
    fails(f"{tmp_path}/lacks.h5: no dataset train/y, expected {keys}", *parts, f"{tmp_path}/lacks.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["train/x"], file["train/y"] = np.zeros((1, 5, 4), np.uint8), np.zeros(1, np.uint8)
    line = f"{tmp_path}/other.h5: train/x: (5, 4), expected (5, 3) as in {tmp_path}/part-0.h5"
    fails(line, *parts, f"{tmp_path}/other.h5")


def test_a_file_whose_name_looks_like_a_pattern(arrays, tmp_path):
    with h5py.File(tmp_path / "run[1].h5", "w") as file:
        for key, array in arrays.items():
            file[key] = array
    assert Hdf5(f"{tmp_path}/run[1].h5").open().train.samples == TRAIN
