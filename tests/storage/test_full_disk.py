"""Files of a checkpoint on a disk that is full: one line, and HDF5 keeps nothing that it would write again."""

import h5py
import pytest
from saved import LAYOUT, OTHER, POSITION, save_files

from full_disk import full_disk
from mpidl.errors import MpidlError
from mpidl.storage.checkpoints import newest_good
from mpidl.storage.files import INDEX, scratch, shard_file
from mpidl.storage.writer import CheckpointIndex, save_index

SIZES = [0, 96, 600, 1 << 10, 1 << 12]


def opened():
    """Return the number of HDF5 files that are open in this process."""
    return h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)


@pytest.mark.parametrize("size", SIZES)
def test_a_shard(tmp_path, capfd, size):
    before, directory = opened(), scratch(tmp_path, 1)
    with full_disk(size), pytest.raises(MpidlError) as error:
        save_files(directory)
    assert str(error.value) == f"{directory / shard_file(0)}: can't be written: File too large"
    assert opened() == before
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("size", SIZES)
def test_an_index(tmp_path, capfd, size):
    before, directory = opened(), scratch(tmp_path / "checkpoints", POSITION.step)
    save_files(directory)
    arguments = (directory, CheckpointIndex(LAYOUT, 3, POSITION, "[run]\n", "0.0.1", {}, [OTHER]))
    with full_disk(size), pytest.raises(MpidlError) as error:
        save_index(*arguments)
    assert str(error.value) == f"{directory / INDEX}: can't be written: File too large"
    assert opened() == before
    assert capfd.readouterr().err == ""
    (directory / INDEX).unlink()
    save_index(*arguments)
    assert newest_good(tmp_path) == (tmp_path / "checkpoints" / str(POSITION.step), [])
