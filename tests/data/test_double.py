"""Numbers of float64 stay so on their way to a model of float64, and become float32 for others."""

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict
from mpidl.data import ArrayFiles, Hdf5
from mpidl.job.build import build_model
from mpidl.job.job import Job

RANDOM = np.random.default_rng(5)
ARRAYS = {f"{part}/{name}": RANDOM.normal(size=(24, 3)) for part in ("train", "test") for name in "xy"}
TRAIN, TEST = ((ARRAYS[f"{part}/x"], ARRAYS[f"{part}/y"]) for part in ("train", "test"))


def of_npz(directory):
    np.savez(directory / "a.npz", **ARRAYS)
    return ArrayFiles(str(directory / "a.npz"))


def of_npy(directory):
    for key, values in ARRAYS.items():
        (directory / key).parent.mkdir(exist_ok=True)
        np.save(directory / f"{key}.npy", values)
    return ArrayFiles(str(directory))


def of_hdf5(directory):
    with h5py.File(directory / "a.h5", "w") as file:
        for key, values in ARRAYS.items():
            file[key] = values
    return Hdf5(str(directory / "a.h5"))


SOURCES = {"memory": lambda directory: mpidl.Arrays(TRAIN, TEST), "npz": of_npz, "npy": of_npy, "hdf5": of_hdf5}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", SOURCES)
def test_numbers_have_the_models_precision(source, dtype, tmp_path):
    section = {"layer": [{"type": "dense", "units": 3}], "loss": "mean_squared_error", "dtype": dtype}
    config = from_dict({"model": section, "data": {"source": "digits"}})
    dataset = SOURCES[source](tmp_path).open()
    job = Job.of(config, dataset, build_model(config, dataset))
    for split, (inputs, targets) in ((job.dataset.train, TRAIN), (job.dataset.test, TEST)):
        for indices in (np.array([5, 20, 3]), np.arange(7, 12)):
            split.prefetch(indices)
            batch = split.gather(indices)
            assert batch.inputs.dtype == batch.targets.dtype == dtype
            assert np.array_equal(batch.inputs, inputs[indices].astype(dtype))
            assert np.array_equal(batch.targets, targets[indices].astype(dtype))


@pytest.mark.parametrize("source", SOURCES)
def test_integers_stay_integers_beside_them(source, tmp_path):
    dataset = SOURCES[source](tmp_path).open().as_integers().as_double().as_integers()
    batch = dataset.train.gather(np.arange(4))
    assert batch.inputs.dtype == batch.targets.dtype == np.float64
