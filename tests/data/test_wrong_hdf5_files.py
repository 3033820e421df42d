"""HDF5 files that are absent, damaged or don't fit: one line that says which and why."""

import data_files
import h5py
import numpy as np
import pytest
from data_files import TEST, TRAIN

from mpidl.data import Hdf5
from mpidl.errors import MpidlError


def fails(path, line, **keys):
    data_files.fails(Hdf5(str(path), **keys).open, line)


def test_files_that_are_none(arrays, write_hdf5, tmp_path):
    fails(tmp_path / "none.h5", r"^data\.path: .*none\.h5: no such file, expected an HDF5 file$")
    fails(tmp_path, r"^data\.path: .*: not a file, expected an HDF5 file$")
    (tmp_path / "text").write_text("x = 1")
    fails(tmp_path / "text", r"^data\.path: .*text: not a valid HDF5 file \(.*\)$")
    path = write_hdf5(arrays)
    path.write_bytes(path.read_bytes()[:-1000])
    fails(path, r"^data\.path: .*data\.h5: not a valid HDF5 file \(.*truncated.*\)$")


@pytest.mark.parametrize("key", ["train/x", "train/y", "test/x", "test/y"])
def test_missing_key(arrays, write_hdf5, key):
    del arrays[key]
    fails(write_hdf5(arrays), rf"data\.h5: no dataset {key}, expected train/x, train/y, test/x, test/y$")


def test_group_instead_of_dataset(arrays, write_hdf5):
    arrays["train/x/inner"] = arrays.pop("train/x")
    fails(write_hdf5(arrays), r"data\.h5: no dataset train/x")


#: What takes the place of some arrays.
WRONG = {
    "counts": (lambda a: {"train/y": a["train/y"][1:]}, rf"train/y: {TRAIN - 1} targets, expected {TRAIN} as in .*/x$"),
    "label": (lambda a: {"test/y": a["test/y"] + 50}, r"test/y: label 5\d at index 0, expected 0 to 9$"),
    "shape": (
        lambda a: {"test/x": a["test/x"][:, :, :2]},
        r"test/x: shape \(5, 2\) per sample, expected \(5, 3\) as in",
    ),
    "no shape": (
        lambda a: {"train/x": a["train/x"][:, 0, 0]},
        rf"train/x: shape \({TRAIN},\), expected \(samples, ...\)",
    ),
    "integers": (lambda a: {"test/x": a["test/x"].astype("i2")}, r"test/x: int16, expected uint8 as in .*: train/x$"),
    "complex": (
        lambda a: {"train/x": a["train/x"] * 1j},
        r"train/x: complex128, expected floats, bytes \(uint8\) or oth",
    ),
    "booleans": (
        lambda a: {"train/y": a["train/y"] > 4},
        r"train/y: bool of shape \(37,\), expected integers of shape",
    ),
    "floats": (
        lambda a: {"train/y": a["train/y"] * 1.0},
        r"train/y: float64 of shape \(37,\), expected integers of shape",
    ),
    "kinds": (lambda a: {"test/y": np.ones((TEST, 1))}, r"test/y: float64, expected uint8 as in .*: train/y$"),
    "empty": (
        lambda a: {key: a[key][:0] for key in ("test/x", "test/y")},
        "test/x: no samples, expected at least one$",
    ),
    "outputs": (
        lambda a: {"train/y": np.ones((TRAIN, 2)), "test/y": np.ones((TEST, 3))},
        r"test/y: shape \(3,\) per sample, expected \(2,\) as in .*train/y$",
    ),
    "classes of floats": (
        lambda a: {"train/y": np.ones((TRAIN, 2)), "test/y": np.ones((TEST, 2))},
        r"^data\.classes: 4, expected none: .*train/y contains floats$",
    ),
    "classes exceeded": (
        lambda a: {"train/y": np.where(np.arange(TRAIN), a["train/y"] % 4, 4)},
        r"data\.h5: train/y: label 4 at index 0, expected 0 to 3$",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit(arrays, write_hdf5, case):
    change, line = WRONG[case]
    fails(write_hdf5(arrays | change(arrays)), line, **({"classes": 4} if "classes" in case else {}))


def test_labels_are_checked_beyond_the_first_block(arrays, write_hdf5, monkeypatch):
    monkeypatch.setattr("mpidl.data.columns.LABELS_PER_CHECK", 10)
    arrays["train/y"][33] = 77
    fails(write_hdf5(arrays), r"train/y: label 77 at index 33, expected 0 to 9$", classes=10)


def damaged(arrays, write_hdf5, key):
    """Return the path of a file with a wrong bit in a dataset."""
    path = write_hdf5(arrays, chunks=True, fletcher32=True)
    with h5py.File(path, "r") as file:
        chunk = file[key].id.get_chunk_info(0)
    contents = bytearray(path.read_bytes())
    contents[chunk.byte_offset] ^= 1
    path.write_bytes(contents)
    return path


@pytest.mark.parametrize("prefetch", [True, False])
def test_damage_found_while_reading(arrays, write_hdf5, prefetch):
    split = Hdf5(str(damaged(arrays, write_hdf5, "train/x"))).open().train
    if prefetch:
        split.prefetch(np.arange(4))
    for indices in ([1, 0, 2, 3], [0, 36]):
        with pytest.raises(MpidlError, match=r"train/x: samples 0 to \d+ can't be read \(.*\)$"):
            split.gather(np.array(indices))


def test_damaged_labels(arrays, write_hdf5):
    fails(damaged(arrays, write_hdf5, "train/y"), r"^data\.path: .*data\.h5: labels can't be read \(.*\)$")


@pytest.mark.parametrize("indices", [[0, TRAIN], [-1, 3]])
def test_indices_outside_are_refused(arrays, write_hdf5, indices):
    with pytest.raises(IndexError, match=rf"outside \[0, {TRAIN}\)"):
        Hdf5(str(write_hdf5(arrays))).open().train.gather(np.array(indices))


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


def check(file, arrays):
    """Check that a file has the training samples."""
    batch = Hdf5(str(file)).open().train.gather(np.arange(TRAIN))
    assert np.array_equal(batch.inputs, arrays["train/x"] * np.float32(1 / 255))


def test_a_virtual_dataset_is_read(virtual, arrays):
    check(virtual[0], arrays)


def test_a_source_that_has_moved_is_an_error(virtual):
    file, (_, part) = virtual
    part.rename(part.with_name("moved.h5"))
    fails(file, r"data\.h5: train/x is a virtual dataset, and its source b\.h5 is missing$")
    with h5py.File(part, "w") as other:
        other["y"] = 1
    fails(file, r"data\.h5: train/x is a virtual dataset, and its source .*b\.h5 has no dataset x$")


@pytest.mark.parametrize("indices", [np.arange(10, 20), np.array([12, 36])], ids=["block", "scattered"])
def test_a_number_that_is_none_is_an_error(arrays, write_hdf5, indices):
    arrays["train/x"] = arrays["train/x"].astype(np.float32)
    arrays["train/x"][12, 1, 1] = np.nan
    arrays["test/x"] = arrays["test/x"] * 1.0
    split = Hdf5(str(write_hdf5(arrays))).open().train
    with pytest.raises(MpidlError, match=r"train/x: NaN or infinity in sample \d+, expected finite numbers$"):
        split.gather(indices)


def test_sources_beside_the_file_whose_absolute_names_have_changed(arrays, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    layout = h5py.VirtualLayout((TRAIN, 5, 3), np.uint8)
    layout[:] = h5py.VirtualSource(str(old / "a.h5"), "x", layout.shape)
    with h5py.File(old / "data.h5", "w") as file:
        file.create_virtual_dataset("train/x", layout)
        for key in ("train/y", "test/x", "test/y"):
            file[key] = arrays[key]
    with h5py.File(old / "a.h5", "w") as file:
        file["x"] = arrays["train/x"]
    old.rename(new)
    check(new / "data.h5", arrays)


def test_sources_in_the_directory_of_hdf5s_own_variable(virtual, monkeypatch):
    file, parts = virtual
    elsewhere = file.parent / "elsewhere"
    elsewhere.mkdir()
    for part in parts:
        part.rename(elsewhere / part.name)
    monkeypatch.setenv("HDF5_VDS_PREFIX", "${ORIGIN}/elsewhere")  # too late for HDF5 itself, which reads it once
    Hdf5(str(file)).open()


def test_a_source_that_is_no_file_of_hdf5_is_an_error(virtual):
    file, (_, part) = virtual
    part.write_bytes(b"rubbish")
    fails(file, r"train/x is a virtual dataset, and its source .*b\.h5 can't be used: not a valid HDF5 file \(.*\)$")


@pytest.mark.parametrize("key", ["train/x", "inner"])
@pytest.mark.parametrize("rows", [slice(0, TRAIN // 2), slice(0, TRAIN, 2)], ids=["half", "every second"])
def test_a_part_without_a_source_is_an_error(virtual, arrays, rows, key):
    file, _ = virtual
    with h5py.File(file, "r+") as opened:
        del opened["train/x"]
        opened["own"] = arrays["train/x"][rows]
        part, whole = (h5py.VirtualLayout((TRAIN, 5, 3), np.uint8) for _ in range(2))
        part[rows] = h5py.VirtualSource(opened["own"])
        opened.create_virtual_dataset(key, part, fillvalue=7)
        if key == "inner":
            whole[:] = h5py.VirtualSource(opened[key])
            opened.create_virtual_dataset("train/x", whole)
        without = arrays["train/x"].size - opened["own"].size
    fails(file, rf"{key} is a virtual dataset, and {without} of its {TRAIN * 15} values have no source$")


def test_a_source_whose_scale_the_virtual_dataset_lacks_is_an_error(virtual):
    file, (_, part) = virtual
    with h5py.File(part, "r+") as opened:
        opened["x"].attrs["scale_factor"] = 0.1
    fails(file, r"train/x is a virtual dataset, and its source .*b\.h5 has a scale_factor or add_offset that it lacks$")


def test_a_virtual_dataset_that_grows_with_its_source(virtual, arrays):
    file, _ = virtual
    with h5py.File(file, "r+") as opened:
        del opened["train/x"]
        opened.create_dataset("own", data=arrays["train/x"], maxshape=(None, 5, 3))
        layout = h5py.VirtualLayout((TRAIN, 5, 3), np.uint8, maxshape=(None, 5, 3))
        layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(opened["own"])[: h5py.h5s.UNLIMITED]
        opened.create_virtual_dataset("train/x", layout)
    check(file, arrays)
