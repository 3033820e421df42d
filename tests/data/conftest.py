"""Small datasets in files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from data_files import IDX_NAMES, TEST, TRAIN, idx_bytes
from numpy.typing import NDArray


@pytest.fixture
def arrays() -> dict[str, NDArray[np.uint8]]:
    """Inputs (samples, 5, 3) and labels of ten classes, by the keys of an HDF5 file."""
    random = np.random.default_rng(7)
    made = {}
    for part, samples in (("train", TRAIN), ("test", TEST)):
        made[f"{part}/x"] = random.integers(0, 256, (samples, 5, 3), np.uint8)
        made[f"{part}/y"] = random.integers(0, 10, samples, np.uint8)
    made["train/y"][4] = 9
    return made


@pytest.fixture
def write_idx(tmp_path: Path) -> Callable[..., Path]:
    """Write arrays as the four idx files, and return their directory."""

    def write(arrays: dict[str, NDArray[np.uint8]], zipped: bool) -> Path:
        for key, name in IDX_NAMES.items():
            contents = idx_bytes(arrays[key])
            if zipped:
                (tmp_path / f"{name}.gz").write_bytes(gzip.compress(contents))
            else:
                (tmp_path / name).write_bytes(contents)
        return tmp_path

    return write


@pytest.fixture
def write_hdf5(tmp_path: Path) -> Callable[..., Path]:
    """Write arrays into ``data.h5``, and return its path."""

    def write(arrays: dict[str, NDArray[np.generic]], **keywords: object) -> Path:
        path = tmp_path / "data.h5"
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array, **keywords)
        return path

    return write


@pytest.fixture
def peak() -> Callable[[Callable[[], object]], int]:
    """Measure the peak number of bytes that a function allocates."""
    import tracemalloc

    def measure(function: Callable[[], object]) -> int:
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
