"""Small datasets in files."""

import gzip
import tracemalloc
from functools import partial

import numpy as np
import pytest
from data_files import IDX_NAMES, TEST, TRAIN, hdf5_file, idx_bytes


@pytest.fixture
def arrays():
    """Inputs (samples, 5, 3) and labels of ten classes, by the keys of an HDF5 file."""
    random = np.random.default_rng(7)
    made = {}
    for part, samples in (("train", TRAIN), ("test", TEST)):
        made[f"{part}/x"] = random.integers(0, 256, (samples, 5, 3), np.uint8)
        made[f"{part}/y"] = random.integers(0, 10, samples, np.uint8)
    made["train/y"][4] = 9
    return made


@pytest.fixture
def write_idx(tmp_path):
    """Write arrays as the four idx files, and return their directory."""

    def write(arrays, zipped):
        for key, name in IDX_NAMES.items():
            contents = idx_bytes(arrays[key])
            (tmp_path / f"{name}{'.gz' * zipped}").write_bytes(gzip.compress(contents) if zipped else contents)
        return tmp_path

    return write


@pytest.fixture
def write_hdf5(tmp_path):
    """Write arrays into ``data.h5``, and return its path."""
    return partial(hdf5_file, tmp_path / "data.h5")


@pytest.fixture
def peak():
    """Measure the peak number of bytes that a function allocates."""

    def measure(function):
        function()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            function()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    return measure
