"""HDF5 files, one or several as one: every way to gather samples gives what was written."""

import os
import resource
import threading
from itertools import pairwise

import h5py
import numpy as np
import pytest
from data_files import TEST, TRAIN, hdf5_file
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import Hdf5, Portions
from mpidl.data import hdf5_files as module
from mpidl.errors import UsageError


@pytest.fixture
def reads(monkeypatch):
    """The blocks of inputs that are read, each with the name of the reading thread."""
    made, original = [], h5py.Dataset.read_direct

    def read(self, memory, block, place):
        if self.name.endswith("/x"):
            made.append((block.start, block.stop, threading.current_thread().name))
        original(self, memory, block, place)

    monkeypatch.setattr(h5py.Dataset, "read_direct", read)
    return made


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("keywords", [{}, {"chunks": True, "compression": "gzip"}])
def test_every_way_to_gather_gives_what_was_written(arrays, write_hdf5, dtype, keywords):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(dtype)
    dataset = Hdf5(str(write_hdf5(arrays, **keywords))).open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("hdf5", (5, 3), 10)
    assert (dataset.train.samples, dataset.test.samples) == (TRAIN, TEST)
    assert dataset.train.contiguous
    scale = np.float32(1 / 255 if dtype == "u1" else 1)
    dataset.train.prefetch(np.arange(20, 30))
    for indices in ([22, 29, 20], [0, 1, 2], [5, 3, 4], [30, 2, 2, 11], [18, 25], [36]):
        batch = dataset.train.gather(np.array(indices))
        assert batch.inputs.dtype == np.float32
        assert batch.targets.dtype == np.int64
        assert np.array_equal(batch.inputs, arrays["train/x"][indices].astype(np.float32) * scale)
        assert np.array_equal(batch.targets, arrays["train/y"][indices])


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("portion", [4, 8, 12, 16, 20, 40])
def test_portions_are_read_once_in_the_background(arrays, write_hdf5, reads, portion, epochs):
    dataset = Hdf5(str(write_hdf5(arrays))).open()
    portions = Portions(TRAIN, 4, portion, seed=1, contiguous=dataset.train.contiguous)
    numbers = range(epochs * portions.per_epoch)
    dataset.train.prefetch(portions.indices(0))
    for number in numbers:
        if number + 1 in numbers:
            dataset.train.prefetch(portions.indices(number + 1))
        for indices in portions.batches(number):
            batch = dataset.train.gather(indices)
            assert np.array_equal(batch.inputs, arrays["train/x"][indices] * np.float32(1 / 255))
            assert np.array_equal(batch.targets, arrays["train/y"][indices])
    assert all(thread.startswith("prefetch") for *_, thread in reads)
    held, expected = [], []
    for number in numbers:
        start = int(portions.indices(number).min())
        if start in held:
            held.remove(start)
        else:
            expected.append(start)
        held = [*held[-1:], start]
    assert [start for start, *_ in reads] == expected


def test_gather_waits_for_the_portion(arrays, write_hdf5, monkeypatch):
    dataset = Hdf5(str(write_hdf5(arrays))).open()
    go, original = threading.Event(), h5py.Dataset.read_direct

    def read(self, *block):
        assert go.wait(60)
        original(self, *block)

    monkeypatch.setattr(h5py.Dataset, "read_direct", read)
    dataset.train.prefetch(np.arange(8))
    threading.Timer(0.05, go.set).start()
    assert dataset.train.gather(np.array([7, 0])).targets.tolist() == arrays["train/y"][[7, 0]].tolist()


def test_reading_ahead_leaves_the_portion_in_use(arrays, write_hdf5, reads):
    split = Hdf5(str(write_hdf5(arrays))).open().train
    split.prefetch(np.arange(0, 8))
    split.prefetch(np.arange(8, 16))
    split.gather(np.arange(0, 4))
    split.prefetch(np.arange(8, 16))
    split.gather(np.arange(4, 8))
    split.prefetch(np.arange(16, 24))
    split.gather(np.arange(8, 12))
    split.gather(np.arange(16, 20))
    assert [(start, stop) for start, stop, _ in reads] == [(0, 8), (8, 16), (16, 24)]


def test_a_portion_that_is_still_there_counts_as_new(arrays, write_hdf5, reads):
    split = Hdf5(str(write_hdf5(arrays))).open().train
    for start in (0, 8, 0, 16):
        split.prefetch(np.arange(start, start + 8))
    split.gather(np.arange(16, 20))
    split.gather(np.arange(4))
    assert [(start, stop) for start, stop, _ in reads] == [(0, 8), (8, 16), (16, 24)]


def test_nothing_is_allocated_for_samples_once_warm(write_hdf5, peak):
    data = {key: np.zeros((400, 784), np.uint8) for key in ("train/x", "test/x")}
    data |= {key: np.zeros(400, np.uint8) for key in ("train/y", "test/y")}
    split = Hdf5(str(write_hdf5(data))).open().train
    block = 100 + np.random.default_rng(0).permutation(200)
    split.prefetch(block)
    assert peak(lambda: split.gather(block[:128])) < 4096

    def epoch() -> None:
        for start in (0, 100, 200, 300):
            split.prefetch(np.arange(start, start + 100))
            split.gather(np.arange(start, start + 30))

    assert peak(epoch) < 30_000  # a portion is 78 KB


def test_scattered_samples_are_read_alone(arrays, write_hdf5, reads):
    split = Hdf5(str(write_hdf5(arrays))).open().train
    scattered = np.array([36, 0])
    split.prefetch(scattered)
    assert split.gather(scattered).targets.tolist() == arrays["train/y"][scattered].tolist()
    assert reads == []


def test_float_targets(arrays, write_hdf5):
    for part in ("train", "test"):
        arrays[f"{part}/y"] = np.random.default_rng(1).random((len(arrays[f"{part}/y"]), 2))
    dataset = Hdf5(str(write_hdf5(arrays))).open()
    assert dataset.classes is None
    dataset.train.prefetch(np.arange(10))
    for indices in ([4, 3], [20, 33, 1]):
        targets = dataset.train.gather(np.array(indices)).targets
        assert targets.dtype == np.float32
        assert np.array_equal(targets, arrays["train/y"][indices].astype(np.float32))


def test_classes(arrays, write_hdf5):
    arrays["train/y"] %= 5
    arrays["test/y"] %= 5
    arrays["train/y"][0] = 4
    path = write_hdf5(arrays)
    assert Hdf5(str(path)).open().classes == 5
    assert Hdf5(str(path), classes=8).open().classes == 8


def test_classes_are_counted_over_all_blocks(arrays, write_hdf5, monkeypatch):
    monkeypatch.setattr("mpidl.data.columns.LABELS_PER_CHECK", 10)
    arrays["train/y"][5:] %= 9
    assert arrays["train/y"][4] == 9
    assert Hdf5(str(write_hdf5(arrays))).open().classes == 10


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i8"])
def test_integers_stay_integers_where_they_are_asked_for(arrays, write_hdf5, dtype):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(dtype)
    split = Hdf5(str(write_hdf5(arrays))).open().as_integers().train
    for indices in (np.arange(10, 20), np.array([12, 36])):
        found = split.gather(indices).inputs
        assert found.dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(found, arrays["train/x"][indices])


CUTS = (0, 5, 5, 20, TRAIN)  # the second part is empty


@pytest.fixture
def files(arrays, tmp_path):
    """The training samples in files whose names are in order, the test samples in another; all samples, by key."""
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        part = {key: arrays[key][start:stop] for key in ("train/x", "train/y")}
        hdf5_file(tmp_path / f"part-{number}.h5", part)
    hdf5_file(tmp_path / "test.h5", {key: arrays[key] for key in ("test/x", "test/y")})
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
        numbers = np.arange(start, stop)
        x, y = ({f"{part}/{key}": numbers for part in ("train", "test")} for key in "xy")
        hdf5_file(path / f"{number}.h5", {key: each[:, None].astype("f4") for key, each in x.items()} | y)
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
    hdf5_file(tmp_path / "lacks.h5", {"train/x": np.zeros((1, 5, 3), np.uint8)})
    parts = [f"{tmp_path}/part-*.h5", f"{tmp_path}/test.h5"]
    fails(f"{tmp_path}/lacks.h5: no dataset train/y, expected {keys}", *parts, f"{tmp_path}/lacks.h5")
    hdf5_file(tmp_path / "other.h5", {"train/x": np.zeros((1, 5, 4), np.uint8), "train/y": np.zeros(1, np.uint8)})
    line = f"{tmp_path}/other.h5: train/x: (5, 4), expected (5, 3) as in {tmp_path}/part-0.h5"
    fails(line, *parts, f"{tmp_path}/other.h5")


def test_a_file_whose_name_looks_like_a_pattern(arrays, tmp_path):
    hdf5_file(tmp_path / "run[1].h5", arrays)
    assert Hdf5(f"{tmp_path}/run[1].h5").open().train.samples == TRAIN
