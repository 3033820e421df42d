"""Files of inputs without targets."""

import h5py
import numpy as np
import pytest

from mpidl.data.dataset import ArraySplit
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import UsageError


def write(path, array, name="x"):
    """Write an array in the format of the path's suffix."""
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez(path, **{name: array})
    else:
        with h5py.File(path, "w") as file:
            file[name] = array


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5", ".hdf5"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", ">i8", "float16", "float32", "float64"])
def test_inputs_are_prepared_as_those_of_any_split(tmp_path, suffix, dtype):
    path = tmp_path / f"data{suffix}"
    array = np.random.default_rng(3).integers(0, 256, (11, 3, 5)).astype(dtype)
    write(path, array)
    found, split = open_inputs(path), ArraySplit(array, np.zeros(11, int))
    assert (found.samples, found.input_shape) == (11, (3, 5))
    for integers in (False, True):
        for indices in (np.arange(2, 9), np.array([7, 3])):
            if integers:
                batch, expected = found.as_integers().gather(indices), split.as_integers().gather(indices)
            else:
                batch, expected = found.gather(indices), split.gather(indices)
            assert batch.targets is None
            assert batch.inputs.dtype == expected.inputs.dtype
            np.testing.assert_array_equal(batch.inputs, expected.inputs)


@pytest.mark.parametrize(("suffix", "name"), [(".npz", "anything"), (".h5", "x"), (".h5", "test/x")])
def test_where_the_inputs_are(tmp_path, suffix, name):
    write(tmp_path / f"data{suffix}", np.ones((3, 2)), name)
    assert open_inputs(tmp_path / f"data{suffix}").samples == 3


def test_files_that_are_wrong_are_one_line(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.ones((3, 2)), b=np.ones((3, 2)))
    write(tmp_path / "other.h5", np.ones((3, 2)), "inputs")
    write(tmp_path / "flat.npy", np.ones(3))
    write(tmp_path / "none.npy", np.ones((0, 3)))
    write(tmp_path / "text.npy", np.array([["a"], ["b"]]))
    np.save(tmp_path / "object.npy", np.array([[{}]]), allow_pickle=True)
    (tmp_path / "data.csv").touch()
    for suffix in ("npy", "npz", "h5"):
        (tmp_path / f"junk.{suffix}").write_bytes(b"junk" * 9)
        (tmp_path / f"empty.{suffix}").touch()
    for name, line in {
        "two.npz": "arrays a, b, expected x, or only one",
        "other.h5": "datasets inputs, expected x, or test/x",
        "flat.npy": "shape (3,), expected (samples, ...) with no size 0 per sample",
        "none.npy": "no samples, expected at least one",
        "text.npy": "<U1, expected floats, bytes (uint8) or other integers",
        "data.csv": "expected a file .npy, .npz, .h5, .hdf5, or 'train', 'validation' or 'test'",
        "absent.npy": "no such file",
        **{f"{kind}.{suffix}": "not a readable" for kind in ("junk", "empty") for suffix in ("npy", "npz")},
        **{f"{kind}.h5": "not a valid HDF5 file (file signature not found)" for kind in ("junk", "empty")},
        "object.npy": "not a readable .npy file",
    }.items():
        with pytest.raises(UsageError) as caught:
            open_inputs(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: {line}")
        assert "\n" not in str(caught.value)


def test_a_number_that_is_not_finite_is_found_where_it_is(tmp_path):
    array = np.ones((9, 2))
    array[7, 1] = np.nan
    write(tmp_path / "data.npy", array)
    split = open_inputs(tmp_path / "data.npy")
    split.gather(np.arange(7))
    with pytest.raises(UsageError, match=r"data\.npy: NaN or infinity in sample 7, expected finite numbers$"):
        split.gather(np.arange(5, 9))
