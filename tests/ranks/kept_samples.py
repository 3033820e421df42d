"""The same samples as an HDF5 file and as idx files, a network that trains on them, and what of them ranks read."""

import gzip

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.data.images import IdxFile

SAMPLES, TEST, BATCH = 101, 23, 4


def write(comm, directory, compressed):
    """Write the samples; return, on all ranks, the path of an HDF5 file and of a directory of idx files."""
    if comm.rank == 0:
        random = np.random.default_rng(3)
        arrays = {}
        for part, count in (("train", SAMPLES), ("test", TEST)):
            arrays[f"{part}/x"] = random.integers(0, 256, (count, 6, 5), np.uint8)
            arrays[f"{part}/y"] = random.integers(0, 3, count, np.uint8)
        _write_hdf5(directory / "data.h5", arrays, compressed)
        (directory / "idx").mkdir()
        for part, name in (("train", "train"), ("test", "t10k")):
            for key, kind in (("x", "images-idx3"), ("y", "labels-idx1")):
                _write_idx(directory / "idx" / f"{name}-{kind}-ubyte", arrays[f"{part}/{key}"], compressed)
    comm.Barrier()
    return {"hdf5": directory / "data.h5", "idx": directory / "idx"}


def _write_hdf5(path, arrays, compressed):
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            chunks = (min(8, len(array)), *array.shape[1:])
            file.create_dataset(key, data=array, chunks=chunks, compression="gzip" if compressed else None)


def _write_idx(path, array, compressed):
    contents = np.array([0x0800 + array.ndim, *array.shape], ">u4").tobytes() + array.tobytes()
    if compressed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(contents))
    else:
        path.write_bytes(contents)


def train(path, source, file, keep="files", name="run", data=None, **options):
    """Train a network on one of the sources; return the summary and the bytes of the parameters."""
    model = mpidl.Network([mpidl.Dense(7, activation="relu"), mpidl.Dense(3)], (6, 5), seed=3)
    section = {"source": source, "path": str(file), "batch": BATCH, "portion": 8, "classes": 3, "keep": keep}
    given = {"algorithm": mpidl.Sync(), "rule": mpidl.Sgd(0.05), "epochs": 2, "deterministic": True, "device": "cpu"}
    config = {"data": section | (data or {})}
    summary = mpidl.train(model, config=config, dir=path, name=name, **(given | options))
    return summary, model.parameters.tobytes()


def noted_rows(monkeypatch):
    """Return a list of what this rank reads of HDF5 inputs from now on: the part's samples, a block's start and end."""
    read, original = [], h5py.Dataset.read_direct

    def note(self, memory, block, place):
        if self.name.endswith("/x") and block.stop - block.start > 1:  # the first sample says what form the others have
            read.append((len(self), block.start, block.stop))
        original(self, memory, block, place)

    monkeypatch.setattr(h5py.Dataset, "read_direct", note)
    return read


def noted_files(monkeypatch):
    """Return a list of the sizes of the idx files of inputs that this rank reads from now on."""
    read, original = [], IdxFile.read

    def note(self):
        if "images" in self.path.name:
            read.append(self.path.stat().st_size)
        return original(self)

    monkeypatch.setattr(IdxFile, "read", note)
    return read


def fails_alike(comm, text, *arguments, **options):
    """Train, which must fail with one line on all ranks that has a text."""
    with pytest.raises(mpidl.MpidlError) as error:
        train(*arguments, **options)
    assert len(set(comm.allgather(str(error.value)))) == 1
    assert text in str(error.value)
