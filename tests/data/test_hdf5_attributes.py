"""HDF5 datasets whose attributes, of netCDF or MATLAB, say that stored values stand for others, or for none."""

import data_files
import h5py
import numpy as np
import pytest
from data_files import TEST, TRAIN, hdf5_file

from mpidl.data import Hdf5
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import MpidlError, UsageError

#: As xarray and netCDF4 write them.
NETCDF = {"_NCProperties": np.bytes_("version=2,netcdf=4.10.1,hdf5=2.2.0")}


@pytest.fixture
def write(arrays, tmp_path):
    """Write the arrays, some replaced, with attributes of datasets by their keys; return the path."""

    def write(changed=(), root=(), fill=None, name="data.h5", **attributes):
        with h5py.File(tmp_path / name, "w") as file:
            file.attrs.update(root)
            for key, array in (arrays | dict(changed)).items():
                dataset = file.create_dataset(key, data=array, fillvalue=fill if key == "train/x" else None)
                dataset.attrs.update(attributes.get(key.replace("/", "_"), {}))
        return tmp_path / name

    return write


@pytest.fixture
def packed(arrays):
    """Packed inputs of both splits, by key."""
    return {f"{part}/x": arrays[f"{part}/x"].astype(np.int16) - 100 for part in ("train", "test")}


def rows(path, indices=range(TRAIN), double=False):
    """Return samples of the training split, read as one block, as a portion, and one by one."""
    indices, split = np.array(indices), Hdf5(str(path)).open().train
    split = split.as_double() if double else split
    block = split.gather(indices).inputs.copy()
    ahead = split.copy()
    ahead.prefetch(np.arange(TRAIN))
    assert np.array_equal(ahead.gather(indices).inputs, block)
    scattered = split.gather(indices[[0, -1]]).inputs
    assert np.array_equal(scattered, block[[0, -1]])
    return block


@pytest.mark.parametrize("double", [False, True])
def test_packed_values_are_unpacked(write, packed, double):
    both = {"scale_factor": np.array([0.001]), "add_offset": 273.15, "_FillValue": np.array([-32768], "i2")}
    path = write(packed, train_x=both, test_x=both)
    expected = packed["train/x"] * 0.001 + 273.15
    assert np.array_equal(rows(path, double=double), expected if double else expected.astype(np.float32))
    assert np.array_equal(
        open_inputs(path).gather(np.arange(TEST)).inputs, (packed["test/x"] * 0.001 + 273.15).astype("f4")
    )


def test_an_offset_that_cancels_most_of_a_value(write, packed):
    packed = {key: values.astype(np.int32) + 2**30 for key, values in packed.items()}
    both = {"add_offset": -float(2**30)}
    assert np.array_equal(rows(write(packed, train_x=both, test_x=both)), packed["train/x"] - 2.0**30)


def test_each_of_several_files_has_its_own_scale(write, packed, tmp_path):
    for name, scale in (("a.h5", 0.5), ("b.h5", 4.0)):
        write(packed, name=name, train_x={"scale_factor": scale}, test_x={"scale_factor": scale})
    split = Hdf5([str(tmp_path / name) for name in ("a.h5", "b.h5")]).open().train
    expected = np.concatenate([packed["train/x"] * 0.5, packed["train/x"] * 4.0])
    assert np.array_equal(split.gather(np.arange(2 * TRAIN)).inputs, expected)
    assert np.array_equal(split.gather(np.array([1, 2 * TRAIN - 1])).inputs, expected[[1, -1]])


def test_bytes_that_netcdf_calls_unsigned(write, arrays):
    signed = {key: arrays[key].view(np.int8) for key in ("train/x", "test/x")}
    path = write(signed, train_x={"_Unsigned": "true"}, test_x={"_Unsigned": b"true"})
    assert np.array_equal(rows(path), arrays["train/x"] * np.float32(1 / 255))


def test_true_of_matlab_is_one(write, arrays):
    logical = {key: (arrays[key] > 99).astype(np.uint8) for key in ("train/x", "test/x")}
    kind = {"MATLAB_class": np.bytes_("logical"), "MATLAB_int_decode": np.int32(1)}
    labels = {f"{part}/y": (arrays[f"{part}/y"] > 4).astype(np.uint8) for part in ("train", "test")}
    path = write(logical | labels, train_x=kind, test_x=kind, train_y=kind, test_y=kind)
    assert np.array_equal(rows(path), logical["train/x"])
    assert np.array_equal(Hdf5(str(path)).open().train.gather(np.arange(TRAIN)).targets, labels["train/y"])


PLAIN = {
    "neither scale nor offset": {"scale_factor": 1.0, "add_offset": 0.0},
    "no such value": {"_FillValue": np.int16(-9999), "missing_value": -9999.5},
    "another sign": {"_FillValue": np.int64(-1)},
    "text": {"units": "K", "long_name": "temperature", "MATLAB_class": "uint8"},
}


@pytest.mark.parametrize("case", PLAIN)
def test_attributes_that_change_nothing(write, arrays, case):
    path = write(train_x=PLAIN[case], test_x=PLAIN[case])
    assert np.array_equal(rows(path), arrays["train/x"] * np.float32(1 / 255))


MISSING = {
    "fill value": ("f4", -999.9, {"_FillValue": -999.9}, {}, r"missing value -999\.9 \(_FillValue\)"),
    "missing value": ("i2", -9, {"missing_value": np.array([-8.0, -9.0])}, {}, r"missing value -9 \(missing_value\)"),
    "of packed": ("i2", -9, {"_FillValue": np.int16(-9), "scale_factor": 0.1}, {}, r"missing value -9 \(_FillValue\)"),
    "unsigned": ("i1", -1, {"_FillValue": np.int8(-1), "_Unsigned": "true"}, {}, r"missing value 255 \(_FillValue\)"),
    "never written": (
        "f4",
        9.969209968386869e36,
        {},
        {"root": NETCDF, "fill": 9.969209968386869e36},
        r"missing value 9\.\d+e\+36 \(netCDF's default _FillValue\)",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_value_is_refused(write, arrays, case):
    dtype, value, attributes, keys, line = MISSING[case]
    x = {f"{part}/x": (arrays[f"{part}/x"] // 3).astype(dtype) for part in ("train", "test")}
    x["train/x"][12, 1, 1] = value
    split = Hdf5(str(write(x, train_x=attributes, test_x=attributes, **keys))).open().train
    assert len(split.gather(np.array([0, 1, 2, 36])).inputs) == 4
    for indices in (np.arange(10, 20), np.array([3, 12, 36])):
        line_of_sample = rf"data\.h5: train/x: {line} in sample 12, expected finite numbers$"
        with pytest.raises(MpidlError, match=line_of_sample) as caught:
            split.gather(indices)
        assert not isinstance(caught.value, UsageError)


def test_a_missing_label_is_refused_at_once(write, arrays):
    fails(write(train_y={"_FillValue": np.uint8(9)}), r"train/y: missing value 9 \(_FillValue\) in sample 4, expected")


def fails(path, line):
    data_files.fails(Hdf5(str(path)).open, line)


@pytest.mark.parametrize(
    ("attributes", "line"),
    [
        ({"scale_factor": "1/100"}, r"attribute scale_factor is '1/100', expected a number$"),
        ({"add_offset": np.array([1.0, 2.0])}, r"attribute add_offset is \[1\.0, 2\.0\], expected one finite number$"),
        ({"missing_value": "none"}, r"attribute missing_value is 'none', expected a number$"),
        ({"MATLAB_empty": np.uint8(1)}, r"an empty array of MATLAB, expected at least one sample$"),
        ({"MATLAB_class": "char"}, r"text of MATLAB, expected numbers$"),
    ],
)
def test_attributes_that_can_not_be_applied_are_one_line(write, attributes, line):
    fails(write(train_x=attributes), rf"data\.h5: train/x: {line}")


@pytest.mark.parametrize("key", ["train/x", "test/y"])
@pytest.mark.parametrize(
    ("value", "line"), [(h5py.Empty("f4"), r"no values \(an empty dataspace\)"), (3.0, "a single value")]
)
def test_a_dataset_without_samples_is_one_line(arrays, tmp_path, key, value, line):
    fails(
        hdf5_file(tmp_path / "data.h5", arrays | {key: value}),
        rf"data\.h5: {key}: {line}, expected an array \(samples, \.\.\.\)$",
    )
    other = hdf5_file(tmp_path / "x.h5", {"x": value})
    data_files.fails(lambda: open_inputs(other), rf"x\.h5: x: {line}, expected an array")
