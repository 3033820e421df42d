"""Files of NumPy: .npy files are mapped, .npz files are read."""

import numpy as np
import pytest
from data_files import TEST, TRAIN

from mpidl.data import ArrayFiles
from mpidl.errors import MpidlError, UsageError


@pytest.fixture(params=["npy", "npz"])
def write(request, tmp_path):
    def write(arrays):
        if request.param == "npz":
            np.savez_compressed(tmp_path / "data.npz", **arrays)
            return tmp_path / "data.npz"
        for key, array in arrays.items():
            (tmp_path / key).parent.mkdir(exist_ok=True)
            np.save(tmp_path / f"{key}.npy", array)
        return tmp_path

    return write


def fails(path, expected, **keys):
    with pytest.raises(UsageError, match=expected) as caught:
        ArrayFiles(str(path), **keys).open()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f2", "f4", "f8", ">f4"])
def test_samples_are_what_was_written(arrays, write, dtype):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(dtype)
    dataset = ArrayFiles(str(write(arrays))).open()
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
    for key, array in arrays.items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{key}.npy", array)

    def use():
        ArrayFiles(str(tmp_path)).open().train.gather(np.arange(100, 164))

    assert peak(use) < 1_000_000  # x is 8 MB


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda a: a.pop("test/x"), r"no (array )?test/x(\.npy)?, expected train/x(\.npy)?, train/y"),
        (
            lambda a: a.update({"train/y": a["train/y"][1:]}),
            r"train/y(\.npy)?: 36 targets, expected 37 as in ",
        ),
        (lambda a: a.update({"test/y": a["test/y"] + 50}), r"test/y(\.npy)?: label 5\d at index 0, expected 0 to 9$"),
        (lambda a: a.update({"train/y": np.array([{}] * TRAIN)}), r"train/y.*(allow_pickle|Python objects)"),
    ],
)
def test_what_does_not_fit_is_one_line(arrays, write, change, line):
    change(arrays)
    fails(write(arrays), line)


def test_missing_and_damaged_files(arrays, write, tmp_path):
    fails(tmp_path / "none", "none: no such file, expected an .npz file or a directory of .npy files$")
    path = write(arrays)
    file = path if path.is_file() else path / "train/x.npy"
    file.write_bytes(file.read_bytes()[:100])
    fails(path, r"^data\.path: .*not a valid \.np[yz] file \(")


def test_numbers_that_are_not_finite(arrays, write):
    for part in ("train", "test"):
        arrays[f"{part}/x"] = arrays[f"{part}/x"].astype(np.float32)
    arrays["train/x"][12, 1, 1] = np.nan
    with pytest.raises(MpidlError, match=r"NaN or infinity in sample 12, expected finite numbers$"):
        ArrayFiles(str(write(arrays))).open().train.gather(np.array([30, 12, 1]))
