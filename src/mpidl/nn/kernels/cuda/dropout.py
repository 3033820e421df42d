"""Dropout by counter-based random numbers; see `mpidl.nn.kernels.cpu.dropout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.nn.kernels.cpu.dropout import axes_of, threshold_of
from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("dropout")


def dropout(
    inputs: Any,
    factors: Any,
    outputs: Any,
    rate: float,
    key: Sequence[int],
    first: int = 0,
    distances: Sequence[int] | None = None,
) -> None:
    (_, *shape), steps = axes_of(outputs.shape, distances)
    words = [np.uint32(word) for word in (threshold_of(rate), *key)]
    # Indices in the whole array may need 64 bits where those of its part don't.
    MODULE.launch(
        "dropout", outputs.size, inputs, factors, outputs, 1 / (1 - rate), *words, *shape,
        *(np.int64(each) for each in (first, *steps[:-1])),
    )  # fmt: skip
