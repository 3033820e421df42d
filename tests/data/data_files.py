"""Contents of the files in these tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TRAIN, TEST = 37, 11

IDX_NAMES = {
    "train/x": "train-images-idx3-ubyte",
    "train/y": "train-labels-idx1-ubyte",
    "test/x": "t10k-images-idx3-ubyte",
    "test/y": "t10k-labels-idx1-ubyte",
}


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    header = np.array([0x0800 + array.ndim, *array.shape], ">u4")
    return header.tobytes() + array.tobytes()
