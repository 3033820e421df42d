"""Samples that are kept in memory are those of the files, which are read once."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from data_files import TEST, TRAIN

import mpidl
from mpidl.config import from_dict
from mpidl.data import CachedSplit, Hdf5, Portions, Synthetic, in_memory
from mpidl.data.arrays import ArrayFiles
from mpidl.data.idx import Idx, IdxFile
from mpidl.errors import UsageError
from mpidl.job.build import build

INDICES = np.array([36, 0, 7, 7, 12])


def dataset_of(kind, arrays, tmp_path, write_hdf5, write_idx):
    if kind == "hdf5":
        return Hdf5(str(write_hdf5(arrays, chunks=True, compression="gzip"))).open()
    if kind == "doubles":
        doubles = {key: array / 3 if key.endswith("x") else array for key, array in arrays.items()}
        return Hdf5(str(write_hdf5(doubles))).open()
    if kind == "idx":
        return Idx(str(write_idx(arrays, zipped=True))).open()
    if kind == "npz":
        np.savez(tmp_path / "data.npz", **arrays)
        return ArrayFiles(str(tmp_path / "data.npz")).open()
    if kind == "npy":
        for key, array in arrays.items():
            (tmp_path / key).parent.mkdir(exist_ok=True)
            np.save(tmp_path / f"{key}.npy", array.astype(">f4") if key.endswith("x") else array)
        return ArrayFiles(str(tmp_path)).open()
    return Synthetic(samples=TRAIN, test_samples=TEST, shape=(5, 3)).open()


@pytest.mark.parametrize("form", ["as it is", "integers", "double", "both"])
@pytest.mark.parametrize("kind", ["hdf5", "doubles", "idx", "npz", "npy", "synthetic"])
def test_batches_and_checksums_are_those_of_the_source(arrays, tmp_path, write_hdf5, write_idx, kind, form):
    given = dataset_of(kind, arrays, tmp_path, write_hdf5, write_idx)
    found = in_memory(given)
    if form in ("integers", "both"):
        given, found = given.as_integers(), found.as_integers()
    if form in ("double", "both"):
        given, found = given.as_double(), found.as_double()
    assert found.input_shape == given.input_shape
    for mine, its in ((found.train, given.train), (found.test, given.test)):
        assert isinstance(mine, CachedSplit)
        assert (mine.samples, mine.contiguous) == (its.samples, its.contiguous)
        for split in (mine, mine.copy()):
            for own, expected in zip(split.gather(INDICES % 11), its.gather(INDICES % 11), strict=True):
                if isinstance(expected, np.ndarray):
                    assert own.dtype == expected.dtype
                    assert own.tobytes() == expected.tobytes()
                else:
                    assert own == expected
        assert mine.checksum() == its.checksum()
    with pytest.raises(IndexError):
        found.train.gather(np.array([TRAIN]))


@pytest.mark.parametrize("chunk", [1, 5, 8, 64])
def test_each_chunk_of_a_file_is_read_once(arrays, write_hdf5, monkeypatch, chunk):
    read, original = [], h5py.Dataset.read_direct

    def note(self, memory, block, place):
        if self.name.endswith("/x") and block.stop - block.start > 1:
            read.extend(range(block.start, block.stop))
            assert block.start % min(chunk, TRAIN) == 0
        original(self, memory, block, place)

    monkeypatch.setattr(h5py.Dataset, "read_direct", note)
    monkeypatch.setattr("mpidl.data.cached.BLOCK_BYTES", 200)
    split = in_memory(Hdf5(str(write_chunked(write_hdf5, arrays, chunk))).open()).train
    assert split.cached.chunk == min(chunk, TRAIN)
    for _ in range(3):
        split.gather(INDICES)
    split.copy().load()
    assert sorted(read) == list(range(TRAIN))


def test_what_is_let_go_of_is_read_again(arrays, write_idx, monkeypatch):
    read, original = [], IdxFile.read

    def note(self):
        read.append(self.path.name)
        return original(self)

    monkeypatch.setattr(IdxFile, "read", note)
    split = in_memory(Idx(str(write_idx(arrays, zipped=False))).open()).train
    read.clear()
    first = split.gather(INDICES).inputs.copy()
    split.gather(INDICES[:2])
    assert read == ["train-images-idx3-ubyte"]
    split.cached.release()
    assert np.array_equal(split.gather(INDICES).inputs, first)
    assert read == ["train-images-idx3-ubyte"] * 2


def sections(path, **data):
    return {
        "data": {"source": "hdf5", "path": str(path), "batch": 4, "portion": 8, **data},
        "model": {"layer": [{"type": "dense", "units": 10}]},
        "run": {"epochs": 3},
    }


def test_a_run_is_the_same_wherever_its_samples_are(arrays, write_hdf5, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, trained = write_hdf5(arrays), {}
    for keep in ("files", "memory"):
        for validation in ({}, {"validation": 0.2}):
            config = sections(path, keep=keep, **validation)
            config["run"]["name"] = f"{keep}-{len(validation)}"
            summary = mpidl.train(config=config, device="cpu")
            trained[keep, len(validation)] = mpidl.load(summary["run_dir"]).parameters.tobytes()
    assert trained["files", 0] == trained["memory", 0]
    assert trained["files", 1] == trained["memory", 1]
    assert trained["files", 0] != trained["files", 1]


@pytest.mark.parametrize("keep", ["files", "memory"])
@pytest.mark.parametrize(("shuffle", "blocks"), [(None, True), ("portion", True), ("samples", False)])
def test_the_order_is_by_samples_or_by_portions(arrays, write_hdf5, shuffle, blocks, keep):
    given = {} if shuffle is None else {"shuffle": shuffle}
    job = build(from_dict(sections(write_hdf5(arrays), keep=keep, **given)))
    expected = Portions(TRAIN, 4, 8, 0, contiguous=blocks)
    for number in range(2 * expected.per_epoch):
        assert np.array_equal(job.portions.indices(number), expected.indices(number))


def test_portions_of_any_source_may_be_neighbours():
    config = {
        "data": {"source": "digits", "batch": 8, "portion": 32, "shuffle": "portion"},
        "model": {"layer": [{"type": "dense", "units": 10}]},
    }
    portions = build(from_dict(config)).portions
    for number in range(portions.per_epoch):
        found = np.sort(portions.indices(number))
        assert np.array_equal(found, np.arange(found[0], found[0] + len(found)))


@pytest.mark.parametrize(
    ("chunk", "given", "note"),
    [
        (8, {}, None),
        (4, {}, None),
        (5, {}, "data.portion: 8, but the files are read in chunks of 5 samples, some of which span two portions: "
                "use a multiple of 5"),
        (5, {"keep": "memory"}, None),
        (5, {"shuffle": "samples"}, "data.shuffle: 'samples', but the files are read in chunks of 5: use 'portion'"),
    ],
)  # fmt: skip
def test_portions_that_share_chunks_are_said(arrays, write_hdf5, chunk, given, note):
    job = build(from_dict(sections(write_chunked(write_hdf5, arrays, chunk), **given)))
    assert job.notes == ([] if note is None else [note])


def write_chunked(write_hdf5, arrays, chunk):
    """Write arrays into a file whose inputs are in chunks of `chunk` samples."""
    import h5py

    path = write_hdf5({key: array for key, array in arrays.items() if key.endswith("y")})
    with h5py.File(path, "a") as file:
        for key in ("train/x", "test/x"):
            chunks = (min(chunk, len(arrays[key])), 5, 3)
            file.create_dataset(key, data=arrays[key], chunks=chunks, compression="gzip")
    return path


class Ragged:
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return np.zeros(index + 1, np.float32), 0


def test_samples_without_one_form_can_not_be_kept():
    data = mpidl.Indexed(Ragged(), Ragged(), collate=lambda samples: (samples, None, 1.0)).open()
    split = in_memory(data).train
    with pytest.raises(UsageError) as error:
        split.load()
    assert str(error.value) == "data.keep: 'memory' needs batches of arrays without weights, expected 'files'"


def test_a_run_goes_on_wherever_its_samples_are(arrays, write_hdf5, tmp_path, monkeypatch):
    """The order of the samples and their checksums are the same."""
    monkeypatch.chdir(tmp_path)
    path = write_hdf5(arrays)
    mpidl.train(config=sections(path), device="cpu", epochs=1)
    summary = mpidl.train(config=sections(path, keep="memory"), device="cpu", epochs=2, resume=True)
    assert summary["samples"] == 2 * TRAIN
    with pytest.raises(UsageError, match=r"^data.shuffle: samples, but .* was saved with none, which decides"):
        mpidl.train(config=sections(path, shuffle="samples"), device="cpu", epochs=3, resume=True)
    with pytest.raises(UsageError, match=r"^data.drop_last: True, but .* was saved with False, which decides"):
        mpidl.train(config=sections(path), drop_last=True, device="cpu", epochs=3, resume=True)
