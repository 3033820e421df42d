"""Gathering the samples of a batch from arrays in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.columns import float_dtype, input_dtype

BYTE_SCALE = np.float32(1 / 255)


class _Buffers(NamedTuple):
    rows: NDArray[np.int64]
    raw: NDArray[Any] | None
    inputs: NDArray[Any]
    targets: NDArray[Any]


class Gatherer:
    """Copies samples out of arrays in memory into batches whose buffers it owns, one set per batch size.

    Parameters
    ----------
    integers : bool
        Whether integer inputs stay as they are. Else they become float32, and bytes are scaled to [0, 1].
    double : bool
        Whether inputs of float64 stay so. Else they become float32.
    """

    def __init__(self, integers: bool = False, double: bool = False) -> None:
        self._integers, self._double = integers, double
        self._buffers: dict[int, _Buffers] = {}

    def take(self, inputs: NDArray[Any], targets: NDArray[Any], indices: NDArray[np.int64], first: int = 0) -> Batch:
        """Return the batch of `indices`.

        Parameters
        ----------
        inputs : array (m, *input_shape), integers or floats
        targets : array (m,) of int64, or (m, outputs) of floats, C-contiguous
        indices : array (n,) of int64
            Each in [first, first + m).
        first : int
            Index of the first row of `inputs`.
        """
        buffers = self._buffers.get(len(indices))
        if buffers is None:
            buffers = self._buffers[len(indices)] = self._allocate(len(indices), inputs, targets)
        rows, raw, out, labels = buffers
        np.subtract(indices, first, out=rows)
        if rows.min() < 0 or rows.max() >= len(inputs):
            raise outside(indices, first, first + len(inputs))
        # With mode="raise", take() buffers its output, which costs another copy.
        np.take(targets, rows, axis=0, out=labels, mode="clip")
        if raw is None:
            np.take(inputs, rows, axis=0, out=out, mode="clip")
        else:
            np.take(inputs, rows, axis=0, out=raw, mode="clip")
            np.copyto(out, raw)  # multiplying the bytes directly would allocate conversion buffers in each call
            if raw.dtype == np.uint8 and not self._integers:
                np.multiply(out, BYTE_SCALE, out=out)
        return Batch(out, labels)

    def _allocate(self, size: int, inputs: NDArray[Any], targets: NDArray[Any]) -> _Buffers:
        shape = (size, *inputs.shape[1:])
        dtype = (input_dtype if self._integers else float_dtype)(inputs.dtype, self._double)
        return _Buffers(
            rows=np.empty(size, np.int64),
            raw=None if inputs.dtype == dtype else np.empty(shape, inputs.dtype),
            inputs=np.empty(shape, dtype),
            targets=np.empty((size, *targets.shape[1:]), targets.dtype),
        )


def outside(indices: NDArray[np.int64], start: int, stop: int) -> IndexError:
    """Return the error for indices that aren't all in [start, stop)."""
    return IndexError(f"samples {indices.min()} to {indices.max()}: outside [{start}, {stop})")
