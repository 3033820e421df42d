"""HDF5 files that a script or another program has open, while a run reads them and afterwards."""

import gc
import shutil

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.data import Hdf5
from mpidl.data.unlabelled import open_inputs
from mpidl.errors import UsageError
from mpidl.nn import Dense, Network

FLAGS = [
    {"mode": mode, "locking": locking, "swmr": swmr}
    for mode in ("r", "r+")
    for locking in (None, False, True)
    for swmr in (False, True)
    if mode == "r" or not swmr
]


@pytest.fixture
def file(tmp_path):
    random = np.random.default_rng(3)
    with h5py.File(tmp_path / "data.h5", "w", libver="latest") as written:
        for split in ("train", "test"):
            written[f"{split}/x"], written[f"{split}/y"] = random.normal(size=(64, 3)), np.arange(64) % 2
    return tmp_path / "data.h5"


def copy_of_open(file, swmr):
    """Return a copy of a file as a writer that died has left it."""
    with h5py.File(file, "r+", libver="latest") as written:
        if swmr:
            written.swmr_mode = True
        written.flush()
        shutil.copy(file, file.with_name("copy.h5"))
    return file.with_name("copy.h5")


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_file_that_the_script_has_open_is_read(file, flags):
    with h5py.File(file, **flags) as own:
        expected = own["train/x"][:4].astype(np.float32)
        np.testing.assert_array_equal(Hdf5(str(file)).open().train.gather(np.arange(4)).inputs, expected)
        expected = own["test/x"][:4].astype(np.float32)
        np.testing.assert_array_equal(open_inputs(file).gather(np.arange(4)).inputs, expected)


def test_a_file_of_a_writer_for_others_is_read_while_it_is_open_and_after_it_has_died(file):
    copy = copy_of_open(file, swmr=True)
    assert Hdf5(str(copy)).open().train.samples == 64
    assert open_inputs(copy).samples == 64


def test_why_a_file_can_not_be_read_is_said_first(file):
    copy, expected = copy_of_open(file, swmr=False), r"copy\.h5: can't be opened \(file is already open for write"
    with pytest.raises(UsageError, match=expected):
        Hdf5(str(copy)).open()
    with pytest.raises(UsageError, match=expected):
        open_inputs(copy)


@pytest.mark.parametrize("files", [1, 3])
def test_all_files_are_closed_when_a_training_or_an_evaluation_ends(file, tmp_path, files, request):
    paths = [str(file), *(str(shutil.copy(file, tmp_path / f"{number}.h5")) for number in range(1, files))]
    gc.disable()
    request.addfinalizer(gc.enable)
    network, data = Network([Dense(2)], input_shape=(3,)), Hdf5(paths)
    keys = {"steps": 3, "batch": 8, "portion": 8, "dir": tmp_path, "device": "cpu"}

    def fail(record):
        raise ValueError

    def write():
        for path in paths:
            with h5py.File(path, "r+", locking=True) as own:
                own.attrs["seen"] = 1

    run = mpidl.train(network, data, **keys)["run_dir"]
    write()
    mpidl.evaluate(run, network, data)
    write()
    with pytest.raises(mpidl.MpidlError):
        mpidl.train(network, data, callbacks=[fail], **keys)
    write()
    # What the script has opened stays open.
    own = data.open()
    for _ in range(2):
        mpidl.train(network, own, **keys)
    assert own.train.gather(np.arange(64 * files)).inputs.shape == (64 * files, 3)


@pytest.mark.parametrize("locking", [None, False, True])
def test_a_checkpoint_that_the_script_has_open_is_read(tmp_path, locking):
    config = {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}
    run = mpidl.train(config=config, dir=tmp_path, steps=2, device="cpu")["run_dir"]
    before = mpidl.load(run).parameters.copy()
    with h5py.File(tmp_path / "run" / "checkpoints" / "2" / "index.h5", locking=locking):
        np.testing.assert_array_equal(mpidl.load(run).parameters, before)
