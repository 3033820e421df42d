"""Files of NumPy: .npy files are mapped, .npz files are read; numbers of float64 stay so for models of float64."""

import numpy as np
import pytest
from data_files import TEST, TRAIN, fails, source_of

import mpidl
from mpidl.config import from_dict
from mpidl.data import ArrayFiles
from mpidl.errors import MpidlError
from mpidl.job.build import build_model
from mpidl.job.job import Job


@pytest.fixture(params=["npy", "npz"])
def write(request, tmp_path):
    """Write arrays, and return their source."""
    return lambda arrays: source_of(request.param, tmp_path, arrays)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f2", "f4", "f8", ">f4"])
def test_samples_are_what_was_written(arrays, write, dtype):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(dtype)
    dataset = write(arrays).open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("arrays", (5, 3), 10)
    assert (dataset.train.samples, dataset.test.samples) == (TRAIN, TEST)
    indices, scale = np.array([22, 36, 0, 5]), np.float32(1 / 255 if dtype == "u1" else 1)
    batch = dataset.train.gather(indices)
    assert (batch.inputs.dtype, batch.targets.dtype) == (np.float32, np.int64)
    assert np.array_equal(batch.inputs, arrays["train/x"][indices].astype(np.float32) * scale)
    assert np.array_equal(batch.targets, arrays["train/y"][indices])
    if dtype in ("u1", "i4"):
        whole = dataset.as_integers().train.gather(indices).inputs
        assert whole.dtype == dtype
        assert np.array_equal(whole, arrays["train/x"][indices])


def test_inputs_in_npy_files_are_mapped_and_not_read(arrays, tmp_path, peak):
    arrays["train/x"] = np.zeros((20_000, 100), np.float32)
    arrays["train/y"], arrays["test/x"] = np.arange(20_000) % 10, np.zeros((TEST, 100), np.float32)
    source = source_of("npy", tmp_path, arrays)
    assert peak(lambda: source.open().train.gather(np.arange(100, 164))) < 1_000_000  # x is 8 MB


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda a: a.pop("test/x"), r"no (array )?test/x(\.npy)?, expected train/x(\.npy)?, train/y"),
        (lambda a: a.update({"train/y": a["train/y"][1:]}), r"train/y(\.npy)?: 36 targets, expected 37 as in "),
        (lambda a: a.update({"test/y": a["test/y"] + 50}), r"test/y(\.npy)?: label 5\d at index 0, expected 0 to 9$"),
        (lambda a: a.update({"train/y": np.array([{}] * TRAIN)}), r"train/y.*(allow_pickle|Python objects)"),
    ],
)
def test_what_does_not_fit_is_one_line(arrays, write, change, line):
    change(arrays)
    fails(write(arrays).open, line)


def test_missing_and_damaged_files(arrays, write, tmp_path):
    line = "none: no such file, expected an .npz file or a directory of .npy files$"
    fails(ArrayFiles(str(tmp_path / "none")).open, line)
    source = write(arrays)
    file = next(path for path in (tmp_path / "data.npz", tmp_path / "train/x.npy") if path.exists())
    file.write_bytes(file.read_bytes()[:100])
    fails(source.open, r"^data\.path: .*not a valid \.np[yz] file \(")


def test_numbers_that_are_not_finite(arrays, write):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(np.float32)
    arrays["train/x"][12, 1, 1] = np.nan
    with pytest.raises(MpidlError, match=r"NaN or infinity in sample 12, expected finite numbers$"):
        write(arrays).open().train.gather(np.array([30, 12, 1]))


RANDOM = np.random.default_rng(5)
ARRAYS = {f"{part}/{name}": RANDOM.normal(size=(24, 3)) for part in ("train", "test") for name in "xy"}
TRAINING, TESTING = ((ARRAYS[f"{part}/x"], ARRAYS[f"{part}/y"]) for part in ("train", "test"))


@pytest.fixture(params=["memory", "npz", "npy", "hdf5"])
def doubles(request, tmp_path):
    """A dataset of float64."""
    source = (
        source_of(request.param, tmp_path, ARRAYS) if request.param != "memory" else mpidl.Arrays(TRAINING, TESTING)
    )
    return source.open()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_have_the_models_precision(doubles, dtype):
    section = {"layer": [{"type": "dense", "units": 3}], "loss": "mean_squared_error", "dtype": dtype}
    config = from_dict({"model": section, "data": {"source": "digits"}})
    job = Job.of(config, doubles, build_model(config, doubles))
    for split, (inputs, targets) in ((job.dataset.train, TRAINING), (job.dataset.test, TESTING)):
        for indices in (np.array([5, 20, 3]), np.arange(7, 12)):
            split.prefetch(indices)
            batch = split.gather(indices)
            assert batch.inputs.dtype == batch.targets.dtype == dtype
            assert np.array_equal(batch.inputs, inputs[indices].astype(dtype))
            assert np.array_equal(batch.targets, targets[indices].astype(dtype))


def test_integers_stay_integers_beside_them(doubles):
    dataset = doubles.as_integers().as_double().as_integers()
    batch = dataset.train.gather(np.arange(4))
    assert batch.inputs.dtype == batch.targets.dtype == np.float64
