from __future__ import annotations

import threading

import h5py
import numpy as np
import pytest
from data_files import TEST, TRAIN

from mpidl.data import Hdf5, Portions
from mpidl.data.hdf5 import _Block
from mpidl.errors import MpidlError, UsageError


@pytest.fixture
def write(tmp_path):
    def write(arrays, **keywords):
        path = tmp_path / "data.h5"
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array, **keywords)
        return path

    return write


@pytest.fixture
def reads(monkeypatch):
    """The blocks that are read, each with the name of the reading thread."""
    made = []
    original = _Block.read

    def read(self, start, stop):
        made.append((start, stop, threading.current_thread().name))
        original(self, start, stop)

    monkeypatch.setattr(_Block, "read", read)
    return made


def fails(path, expected: str, **keys) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        Hdf5(str(path), **keys).open()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("keywords", [{}, {"chunks": True, "compression": "gzip"}])
def test_every_way_to_gather_gives_what_was_written(arrays, write, dtype, keywords):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(dtype)
    dataset = Hdf5(str(write(arrays, **keywords))).open()
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
def test_portions_are_read_once_in_the_background(arrays, write, reads, portion, epochs):
    dataset = Hdf5(str(write(arrays))).open()
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


def test_gather_waits_for_the_portion(arrays, write, monkeypatch):
    dataset = Hdf5(str(write(arrays))).open()
    go, original = threading.Event(), _Block.read

    def read(self, start, stop):
        assert go.wait(10)
        original(self, start, stop)

    monkeypatch.setattr(_Block, "read", read)
    dataset.train.prefetch(np.arange(8))
    threading.Timer(0.05, go.set).start()
    assert dataset.train.gather(np.array([7, 0])).targets.tolist() == arrays["train/y"][[7, 0]].tolist()


def test_reading_ahead_leaves_the_portion_in_use(arrays, write, reads):
    split = Hdf5(str(write(arrays))).open().train
    split.prefetch(np.arange(0, 8))
    split.prefetch(np.arange(8, 16))
    split.gather(np.arange(0, 4))
    split.prefetch(np.arange(8, 16))
    split.gather(np.arange(4, 8))
    split.prefetch(np.arange(16, 24))
    split.gather(np.arange(8, 12))
    split.gather(np.arange(16, 20))
    assert [(start, stop) for start, stop, _ in reads] == [(0, 8), (8, 16), (16, 24)]


def test_a_portion_that_is_still_there_counts_as_new(arrays, write, reads):
    split = Hdf5(str(write(arrays))).open().train
    for start in (0, 8, 0, 16):
        split.prefetch(np.arange(start, start + 8))
    split.gather(np.arange(16, 20))
    split.gather(np.arange(4))
    assert [(start, stop) for start, stop, _ in reads] == [(0, 8), (8, 16), (16, 24)]


def test_gather_allocates_nothing_once_warm(write, peak):
    data = {key: np.zeros((400, 784), np.uint8) for key in ("train/x", "test/x")}
    data |= {key: np.zeros(400, np.uint8) for key in ("train/y", "test/y")}
    split = Hdf5(str(write(data))).open().train
    block = 100 + np.random.default_rng(0).permutation(200)
    split.prefetch(block)
    assert peak(lambda: split.gather(block[:128])) < 4096


def test_prefetch_allocates_no_memory_for_samples_once_warm(write, peak):
    data = {key: np.zeros((400, 784), np.uint8) for key in ("train/x", "test/x")}
    data |= {key: np.zeros(400, np.uint8) for key in ("train/y", "test/y")}
    split = Hdf5(str(write(data))).open().train

    def epoch() -> None:
        for start in (0, 100, 200, 300):
            split.prefetch(np.arange(start, start + 100))
            split.gather(np.arange(start, start + 30))

    assert peak(epoch) < 30_000  # a portion is 78 KB


def test_scattered_samples_are_read_alone(arrays, write, reads):
    split = Hdf5(str(write(arrays))).open().train
    scattered = np.array([36, 0])
    split.prefetch(scattered)
    assert split.gather(scattered).targets.tolist() == arrays["train/y"][scattered].tolist()
    assert reads == []


def test_float_targets(arrays, write):
    for part in ("train", "test"):
        arrays[f"{part}/y"] = np.random.default_rng(1).random((len(arrays[f"{part}/y"]), 2))
    dataset = Hdf5(str(write(arrays))).open()
    assert dataset.classes is None
    dataset.train.prefetch(np.arange(10))
    for indices in ([4, 3], [20, 33, 1]):
        targets = dataset.train.gather(np.array(indices)).targets
        assert targets.dtype == np.float32
        assert np.array_equal(targets, arrays["train/y"][indices].astype(np.float32))


def test_classes(arrays, write):
    arrays["train/y"] %= 5
    arrays["test/y"] %= 5
    arrays["train/y"][0] = 4
    path = write(arrays)
    assert Hdf5(str(path)).open().classes == 5
    assert Hdf5(str(path), classes=8).open().classes == 8
    fails(path, r"data\.h5: train/y: label 4 at index 0, expected 0 to 3$", classes=4)


def test_missing_file(tmp_path):
    fails(tmp_path / "none.h5", r"^data\.path: .*none\.h5: no such file, expected an HDF5 file$")
    fails(tmp_path, r"^data\.path: .*: not a file, expected an HDF5 file$")


def test_not_hdf5(tmp_path):
    (tmp_path / "text").write_text("x = 1")
    fails(tmp_path / "text", r"^data\.path: .*text: not a valid HDF5 file \(.*\)$")


def test_truncated(arrays, write):
    path = write(arrays)
    path.write_bytes(path.read_bytes()[:-1000])
    fails(path, r"^data\.path: .*data\.h5: not a valid HDF5 file \(.*truncated.*\)$")


@pytest.mark.parametrize("key", ["train/x", "train/y", "test/x", "test/y"])
def test_missing_key(arrays, write, key):
    del arrays[key]
    fails(write(arrays), rf"data\.h5: no dataset {key}, expected train/x, train/y, test/x, test/y$")


def test_group_instead_of_dataset(arrays, write):
    arrays["train/x/inner"] = arrays.pop("train/x")
    fails(write(arrays), r"data\.h5: no dataset train/x")


WRONG = {
    "counts": (
        "train/y",
        lambda y: y[1:],
        rf"train/y: {TRAIN - 1} targets, expected {TRAIN} as in .*: train/x$",
    ),
    "negative": (
        "train/y",
        lambda y: y.astype(int) - 9,
        r"train/y: label -\d at index \d+, expected at least 0$",
    ),
    "test label": ("test/y", lambda y: y + 50, r"test/y: label 5\d at index 0, expected 0 to 9$"),
    "shape": (
        "test/x",
        lambda x: x[:, :, :2],
        r"test/x: shape \(5, 2\) per sample, expected \(5, 3\) as in .*train/x$",
    ),
    "no shape": ("train/x", lambda x: x[:, 0, 0], rf"train/x: shape \({TRAIN},\), expected \(samples, ...\)"),
    "integers": ("test/x", lambda x: x.astype("i2"), r"test/x: int16, expected uint8 as in .*: train/x$"),
    "complex": (
        "train/x",
        lambda x: x * 1j,
        r"train/x: complex128, expected floats, bytes \(uint8\) or other integers$",
    ),
    "booleans": ("train/y", lambda y: y > 4, r"train/y: bool of shape \(37,\), expected integers of shape"),
    "float labels": (
        "train/y",
        lambda y: y * 1.0,
        r"train/y: float64 of shape \(37,\), expected integers of shape",
    ),
    "kinds": ("test/y", lambda y: np.ones((TEST, 1)), r"test/y: float64, expected uint8 as in .*: train/y$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit(arrays, write, case):
    key, change, expected = WRONG[case]
    arrays[key] = change(arrays[key])
    fails(write(arrays), expected)


def test_empty(arrays, write):
    arrays["test/x"], arrays["test/y"] = arrays["test/x"][:0], arrays["test/y"][:0]
    fails(write(arrays), r"data\.h5: test/x: no samples, expected at least one$")


def test_outputs_differ(arrays, write):
    arrays["train/y"], arrays["test/y"] = np.ones((TRAIN, 2)), np.ones((TEST, 3))
    fails(write(arrays), r"test/y: shape \(3,\) per sample, expected \(2,\) as in .*train/y$")


def test_classes_of_float_targets(arrays, write):
    arrays["train/y"], arrays["test/y"] = np.ones((TRAIN, 2)), np.ones((TEST, 2))
    fails(write(arrays), r"^data\.classes: 4, expected none: .*train/y contains floats$", classes=4)


def test_labels_are_checked_beyond_the_first_block(arrays, write, monkeypatch):
    monkeypatch.setattr("mpidl.data.columns.LABELS_PER_CHECK", 10)
    arrays["train/y"][33] = 77
    fails(write(arrays), r"train/y: label 77 at index 33, expected 0 to 9$", classes=10)


def test_classes_are_counted_over_all_blocks(arrays, write, monkeypatch):
    monkeypatch.setattr("mpidl.data.columns.LABELS_PER_CHECK", 10)
    arrays["train/y"][5:] %= 9
    assert arrays["train/y"][4] == 9
    assert Hdf5(str(write(arrays))).open().classes == 10


@pytest.mark.parametrize("prefetch", [True, False])
def test_damage_found_while_reading(arrays, write, prefetch):
    path = write({**arrays, "train/x": arrays["train/x"]}, chunks=True, fletcher32=True)
    with h5py.File(path, "r") as file:
        chunk = file["train/x"].id.get_chunk_info(0)
    contents = bytearray(path.read_bytes())
    contents[chunk.byte_offset] ^= 1
    path.write_bytes(contents)
    split = Hdf5(str(path)).open().train
    if prefetch:
        split.prefetch(np.arange(4))
    for indices in ([1, 0, 2, 3], [0, 36]):
        with pytest.raises(MpidlError, match=r"train/x: samples 0 to \d+ can't be read \(.*\)$"):
            split.gather(np.array(indices))


def test_damaged_labels(arrays, write):
    path = write(arrays, chunks=True, fletcher32=True)
    with h5py.File(path, "r") as file:
        chunk = file["train/y"].id.get_chunk_info(0)
    contents = bytearray(path.read_bytes())
    contents[chunk.byte_offset] ^= 1
    path.write_bytes(contents)
    fails(path, r"^data\.path: .*data\.h5: labels can't be read \(.*\)$")


@pytest.mark.parametrize("indices", [[0, TRAIN], [-1, 3]])
def test_indices_outside_are_refused(arrays, write, indices):
    with pytest.raises(IndexError, match=rf"outside \[0, {TRAIN}\)"):
        Hdf5(str(write(arrays))).open().train.gather(np.array(indices))


@pytest.fixture
def virtual(arrays, tmp_path):
    """A file whose train/x is virtual, in two parts of other files, and the paths of these."""
    half, parts = TRAIN // 2, [tmp_path / "a.h5", tmp_path / "b.h5"]
    layout = h5py.VirtualLayout((TRAIN, 5, 3), np.uint8)
    for part, rows in zip(parts, (slice(0, half), slice(half, TRAIN)), strict=True):
        with h5py.File(part, "w") as file:
            file["x"] = arrays["train/x"][rows]
        layout[rows] = h5py.VirtualSource(part.name, "x", arrays["train/x"][rows].shape)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_virtual_dataset("train/x", layout)
        for key in ("train/y", "test/x", "test/y"):
            file[key] = arrays[key]
    return tmp_path / "data.h5", parts


def test_a_virtual_dataset_is_read(virtual, arrays):
    batch = Hdf5(str(virtual[0])).open().train.gather(np.arange(TRAIN))
    assert np.array_equal(batch.inputs, arrays["train/x"] * np.float32(1 / 255))


def test_a_source_that_has_moved_is_an_error(virtual):
    file, (_, part) = virtual
    part.rename(part.with_name("moved.h5"))
    fails(file, r"data\.h5: train/x is a virtual dataset, and its source b\.h5 is missing$")
    with h5py.File(part, "w") as other:
        other["y"] = 1
    fails(file, r"data\.h5: train/x is a virtual dataset, and its source .*b\.h5 has no dataset x$")


@pytest.mark.parametrize("indices", [np.arange(10, 20), np.array([12, 36])], ids=["block", "scattered"])
def test_a_number_that_is_none_is_an_error(arrays, write, indices):
    arrays["train/x"] = arrays["train/x"].astype(np.float32)
    arrays["train/x"][12, 1, 1] = np.nan
    arrays["test/x"] = arrays["test/x"] * 1.0
    split = Hdf5(str(write(arrays))).open().train
    with pytest.raises(MpidlError, match=r"train/x: NaN or infinity in sample \d+, expected finite numbers$"):
        split.gather(indices)


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i8"])
def test_integers_stay_integers_where_they_are_asked_for(arrays, write, dtype):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(dtype)
    split = Hdf5(str(write(arrays))).open().as_integers().train
    for indices in (np.arange(10, 20), np.array([12, 36])):
        found = split.gather(indices).inputs
        assert found.dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(found, arrays["train/x"][indices])
