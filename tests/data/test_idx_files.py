from __future__ import annotations

import gzip
from pathlib import Path

import data_files
import numpy as np
import pytest
from data_files import IDX_NAMES, TEST, TRAIN, idx_bytes

from mpidl.data import Idx
from mpidl.data.images import IdxFile
from mpidl.errors import UsageError

both = pytest.mark.parametrize("zipped", [False, True])


def fails(directory, line, **keys):
    """Check that opening or loading raises an error with this text."""
    data_files.fails(lambda: Idx(str(directory), **keys).open().train.load(), line)


def path_of(directory, key: str, zipped: bool):
    return directory / (IDX_NAMES[key] + ".gz" * zipped)


def put(path, contents: bytes, zipped: bool) -> None:
    path.write_bytes(gzip.compress(contents) if zipped else contents)


@both
@pytest.mark.parametrize("bytes_per_read", [7, 1 << 18])
def test_reads_what_was_written(arrays, write_idx, zipped, bytes_per_read, monkeypatch):
    monkeypatch.setattr("mpidl.data.images.BYTES_PER_READ", bytes_per_read)
    dataset = Idx(str(write_idx(arrays, zipped))).open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("idx", (5, 3), 10)
    assert (dataset.train.samples, dataset.test.samples) == (TRAIN, TEST)
    assert not dataset.train.contiguous
    for split, part in ((dataset.train, "train"), (dataset.test, "test")):
        indices = np.random.default_rng(0).permutation(split.samples)
        batch = split.gather(indices)
        assert np.array_equal(batch.inputs, arrays[f"{part}/x"][indices] * np.float32(1 / 255))
        assert np.array_equal(batch.targets, arrays[f"{part}/y"][indices])


def test_plain_files_come_first(arrays, write_idx):
    write_idx(arrays, zipped=True)
    arrays["train/x"][:] = 255
    dataset = Idx(str(write_idx(arrays, zipped=False))).open()
    assert np.all(dataset.train.gather(np.arange(3)).inputs == 1)


def test_gzip_of_several_members_is_sound(arrays, write_idx):
    directory = write_idx(arrays, zipped=True)
    contents = idx_bytes(arrays["train/x"])
    parts = gzip.compress(contents[:100]) + gzip.compress(contents[100:])
    path_of(directory, "train/x", True).write_bytes(parts)
    batch = Idx(str(directory)).open().train.gather(np.arange(TRAIN))
    assert np.array_equal(batch.inputs, arrays["train/x"] * np.float32(1 / 255))


@both
def test_images_are_not_read_to_open(arrays, write_idx, zipped, monkeypatch):
    directory = write_idx(arrays, zipped)
    read = []
    original = IdxFile.read
    monkeypatch.setattr(IdxFile, "read", lambda self: read.append(self.path.name) or original(self))
    dataset = Idx(str(directory)).open()
    assert all("labels" in name for name in read)
    dataset.test.load()
    assert read[2:] == [path_of(directory, "test/x", zipped).name]


def test_what_is_no_directory(tmp_path):
    fails(tmp_path / "none", r"^data\.path: .*none: no such directory, expected one with the four idx files$")
    (tmp_path / "file").touch()
    fails(tmp_path / "file", r"^data\.path: .*file: not a directory")


@both
@pytest.mark.parametrize("key", IDX_NAMES)
def test_missing_file(arrays, write_idx, zipped, key):
    directory = write_idx(arrays, zipped)
    path_of(directory, key, zipped).unlink()
    fails(directory, rf"^data\.path: .* has neither {IDX_NAMES[key]} nor {IDX_NAMES[key]}\.gz$")


HUGE = np.array([2051, 2**31, 2**31, 2**31], ">u4").tobytes() + bytes(100)
CONTENTS = {
    "wrong magic number": (
        lambda arrays: idx_bytes(arrays["train/y"]) + bytes(99), r"magic number 2049, expected 2051 \(idx3, bytes\)"
    ),
    **{
        f"header cut short to {length}": (
            lambda arrays, length=length: idx_bytes(arrays["train/x"])[:length],
            f"ends after {length} bytes, expected a header of 16",
        )
        for length in (0, 3, 15)
    },
    "header that asks for more than there is": (
        lambda arrays: HUGE, r"header says shape \(2147483648, .*\), expected one that fits in memory"
    ),
}  # fmt: skip


@both
@pytest.mark.parametrize("case", CONTENTS)
def test_contents_that_are_wrong(arrays, write_idx, zipped, case):
    directory, (contents, line) = write_idx(arrays, zipped), CONTENTS[case]
    put(path_of(directory, "train/x", zipped), contents(arrays), zipped)
    fails(directory, rf"train-images-idx3-ubyte(\.gz)?: {line}$")


@both
@pytest.mark.parametrize("key", IDX_NAMES)
@pytest.mark.parametrize("change", [-1, 1])
def test_length_differs_from_header(arrays, write_idx, zipped, key, change):
    directory = write_idx(arrays, zipped)
    contents = idx_bytes(arrays[key])
    put(path_of(directory, key, zipped), contents[:change] if change < 0 else contents + b"x", zipped)
    size = arrays[key].size
    found = f"truncated: {size - 1} bytes" if change < 0 else "more bytes"
    fails(directory, rf"{IDX_NAMES[key]}(\.gz)?: {found}, expected {size} as its header says")


@pytest.mark.parametrize("key", IDX_NAMES)
@pytest.mark.parametrize("kept", [5, 12, 30, -1])
def test_truncated_gzip(arrays, write_idx, key, kept):
    directory = write_idx(arrays, zipped=True)
    path = path_of(directory, key, True)
    path.write_bytes(path.read_bytes()[:kept])
    fails(directory, rf"{IDX_NAMES[key]}\.gz: truncated: the gzip stream ends early")


def test_truncation_that_the_end_hides_is_found_when_loaded(arrays, write_idx):
    directory = write_idx(arrays, zipped=True)
    path = path_of(directory, "train/x", True)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + whole[-4:])
    dataset = Idx(str(directory)).open()
    with pytest.raises(UsageError, match=r"ubyte\.gz: (truncated|not a valid gzip file)"):
        dataset.train.gather(np.arange(2))


def test_damaged_gzip(arrays, write_idx):
    directory = write_idx(arrays, zipped=True)
    path = path_of(directory, "train/x", True)
    contents = bytearray(path.read_bytes())
    contents[-6] ^= 1  # a bit of the checksum
    path.write_bytes(contents)
    fails(directory, r"ubyte\.gz: not a valid gzip file \(CRC check failed")
    path_of(directory, "train/y", True).write_bytes(idx_bytes(arrays["train/y"]))
    fails(directory, r"train-labels-idx1-ubyte\.gz: not a valid gzip file \(Not a gzipped file")


@both
def test_counts_differ(arrays, write_idx, zipped):
    arrays["train/y"] = arrays["train/y"][:-2]
    directory = write_idx(arrays, zipped)
    fails(directory, rf"train-labels-.*: {TRAIN - 2} targets, expected {TRAIN} as in .*train-images-idx3-ubyte")


def test_shapes_differ(arrays, write_idx):
    arrays["test/x"] = arrays["test/x"][:, 1:]
    expected = r"t10k-images-.*: shape \(4, 3\) per sample, expected \(5, 3\) as in .*train-images-"
    fails(write_idx(arrays, zipped=False), expected)


@pytest.mark.parametrize("part", ["train", "test"])
def test_empty(arrays, write_idx, part):
    for key in (f"{part}/x", f"{part}/y"):
        arrays[key] = arrays[key][:0]
    fails(write_idx(arrays, zipped=False), r"-images-idx3-ubyte: no samples, expected at least one$")


@both
@pytest.mark.parametrize("part", ["train", "test"])
def test_labels_out_of_range(arrays, write_idx, zipped, part):
    arrays[f"{part}/y"][[3, 6]] = 10, 200
    fails(write_idx(arrays, zipped), r"-labels-idx1-ubyte(\.gz)?: label 10 at index 3, expected 0 to 9$")


def test_number_of_classes(arrays, write_idx):
    directory = write_idx(arrays, zipped=False)
    assert Idx(str(directory), classes=26).open().classes == 26
    fails(directory, r": label 9 at index \d+, expected 0 to 8$", classes=9)


def test_unreadable_file(arrays, write_idx, monkeypatch):
    directory = write_idx(arrays, zipped=False)

    def refuse(self, *_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    fails(directory, r"train-images-idx3-ubyte: can't be read: Permission denied$")
