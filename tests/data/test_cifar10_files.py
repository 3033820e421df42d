"""CIFAR-10 in its binary version."""

import tarfile

import data_files
import numpy as np
import pytest

from mpidl.data import Cifar10
from mpidl.data.images import ARCHIVE, FOLDER, TEST, TRAIN

EACH = 4


@pytest.fixture
def records():
    """Records by the names of their files."""
    random = np.random.default_rng(3)
    made = {}
    for name in (*TRAIN, TEST):
        made[name] = random.integers(0, 256, (EACH, 3073), np.uint8)
        made[name][:, 0] %= 10
    return made


def write(directory, records):
    directory.mkdir(exist_ok=True)
    for name, contents in records.items():
        (directory / name).write_bytes(contents.tobytes())
    return directory


def packed(tmp_path, records):
    path = tmp_path / ARCHIVE
    with tarfile.open(path, "w:gz") as archive:
        archive.add(write(tmp_path / "files", records), FOLDER)
    return path


PLACES = {
    "directory": lambda tmp_path, records: write(tmp_path, records),
    "directory above": lambda tmp_path, records: write(tmp_path / FOLDER, records).parent,
    "archive": packed,
    "directory of the archive": lambda tmp_path, records: packed(tmp_path, records).parent,
}


@pytest.mark.parametrize("place", PLACES)
def test_gather_gives_what_was_written(tmp_path, records, place):
    dataset = Cifar10(str(PLACES[place](tmp_path, records))).open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("cifar10", (32, 32, 3), 10)
    assert (dataset.train.samples, dataset.test.samples) == (5 * EACH, EACH)
    for split, names in ((dataset.train, TRAIN), (dataset.test, [TEST])):
        batch = split.gather(np.arange(split.samples)[::-1])
        expected = np.concatenate([records[name] for name in names])[::-1]
        assert batch.targets.tolist() == expected[:, 0].tolist()
        assert np.array_equal(batch.inputs[1, 5, 7], expected[1, 1:].reshape(3, 32, 32)[:, 5, 7] * np.float32(1 / 255))
        planes = expected[:, 1:].reshape(-1, 3, 32, 32) * np.float32(1 / 255)
        assert np.array_equal(np.moveaxis(batch.inputs, 3, 1), planes)


def fails(path, line):
    data_files.fails(Cifar10(str(path)).open, line)


def test_missing(tmp_path, records):
    fails(tmp_path / "none", r"^data\.path: .*none: no such directory, expected one with data_batch_1\.bin to ")
    del records["data_batch_3.bin"]
    expected = r"^data\.path: .* has no data_batch_3\.bin, expected "
    fails(write(tmp_path, records), expected)
    fails(packed(tmp_path, records), expected)


@pytest.mark.parametrize("size", [0, 3072, 2 * 3073 + 1])
def test_size(tmp_path, records, size):
    records[TEST] = np.zeros(size, np.uint8)
    expected = rf"test_batch\.bin: {size} bytes, expected a multiple of 3073$"
    fails(write(tmp_path, records), expected)
    fails(packed(tmp_path, records), expected)


def test_label(tmp_path, records):
    records["data_batch_2.bin"][3, 0] = 10
    fails(write(tmp_path, records), r"data_batch_2\.bin: label 10 at index 3, expected 0 to 9$")


def test_damaged_archive(tmp_path, records):
    """The checksum is checked to the end of the archive."""
    path = packed(tmp_path, records)
    whole = path.read_bytes()
    wrong_bit = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    for contents in (b"not an archive", b"", whole[: len(whole) // 2], wrong_bit, whole[:-2]):
        path.write_bytes(contents)
        fails(path, rf"^data\.path: .*{ARCHIVE}: not a valid {ARCHIVE} \(.*\)$")
