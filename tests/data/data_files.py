"""Contents of the files in these tests, and what is wrong with some."""

import h5py
import numpy as np
import pytest

from mpidl.data import ArrayFiles, Hdf5
from mpidl.errors import UsageError

TRAIN, TEST = 37, 11

IDX_NAMES = {
    "train/x": "train-images-idx3-ubyte",
    "train/y": "train-labels-idx1-ubyte",
    "test/x": "t10k-images-idx3-ubyte",
    "test/y": "t10k-labels-idx1-ubyte",
}


def idx_bytes(array):
    header = np.array([0x0800 + array.ndim, *array.shape], ">u4")
    return header.tobytes() + array.tobytes()


def hdf5_file(path, arrays, **keywords):
    """Write arrays into an HDF5 file, and return its path."""
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, **keywords)
    return path


def source_of(form, folder, arrays):
    """Write arrays, by the keys of an HDF5 file, in a form, and return the source that reads them."""
    if form == "hdf5":
        return Hdf5(str(hdf5_file(folder / "data.h5", arrays)))
    if form == "npz":
        np.savez_compressed(folder / "data.npz", **arrays)
        return ArrayFiles(str(folder / "data.npz"))
    for key, array in arrays.items():
        (folder / key).parent.mkdir(exist_ok=True)
        np.save(folder / f"{key}.npy", array)
    return ArrayFiles(str(folder))


def fails(action, line, kind=UsageError):
    """Check that an action raises an error of one line, which this matches."""
    with pytest.raises(kind, match=line) as caught:
        action()
    assert "\n" not in str(caught.value)
