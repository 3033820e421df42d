"""What every wire format offers, and the error feedback around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from mpidl.errors import UsageError


class Wire:
    """A wire format: encodes a chunk of a push into a number of bytes that its length decides.

    Attributes
    ----------
    name : str
        As a configuration has it, such as "topk:0.01".
    """

    name: str

    def size(self, elements: int, dtype: Any) -> int:
        """Return the bytes of a chunk of so many elements of a dtype, a multiple of 8."""
        raise NotImplementedError

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """Encode values + residual; the residual becomes what the encoding leaves out.

        Parameters
        ----------
        values : array (n,), float32 or float64
        residual : array (n,) of the same dtype
            Changed.
        out : array of uint8, at least (size(n),)
            Contiguous, aligned to 8 bytes.
        """
        raise NotImplementedError

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """Write into `values` (n,) what the bytes `data` stand for."""
        raise NotImplementedError

    def warm(self, dtype: Any) -> None:
        """Compile for a dtype, or load from the cache, ahead of the first chunk."""
        values = np.ones(1, dtype)
        data = np.zeros(self.size(1, dtype), np.uint8)
        self.encode(values, np.zeros_like(values), data)
        self.decode(data, values)


@cache
def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a format's loop compiled; Numba is imported only when the first one is needed."""
    from mpidl.jit import jit

    return jit(loop)


class ErrorFeedback:
    """Encodes one worker's pushes to one shard; what one push leaves out is added to the next.

    Parameters
    ----------
    wire : Wire
    size : int
        Elements of the shard.
    dtype : dtype

    Attributes
    ----------
    residual : array (size,)
        What has been left out so far.

    References
    ----------
    F. Seide et al. (2014), 1-bit stochastic gradient descent; S. Karimireddy et al. (2019), Error feedback fixes
    SignSGD and other gradient compression schemes.
    """

    def __init__(self, wire: Wire, size: int, dtype: Any) -> None:
        self._wire = wire
        self.residual = np.zeros(size, dtype)

    def encode(self, start: int, values: np.ndarray, out: np.ndarray) -> None:
        """Encode the chunk of a push that begins at element `start` of the shard; see `Wire.encode`."""
        self._wire.encode(values, self.residual[start : start + values.size], out)


def parse(text: str) -> Wire | None:
    """Return the format that a configuration names; None for "fp32", vectors as they are.

    Raises
    ------
    UsageError
        There is no such format.
    """
    from mpidl.wire.bf16 import Bf16
    from mpidl.wire.onebit import OneBit
    from mpidl.wire.topk import TopK

    name, _, argument = text.partition(":")
    if text == "fp32":
        return None
    if text == "bf16":
        return Bf16()
    if text == "onebit":
        return OneBit()
    if name == "topk":
        try:
            fraction = float(argument)
        except ValueError:
            fraction = 0.0
        if 0 < fraction <= 1:
            return TopK(fraction, text)
    raise UsageError(f"wire: {text!r}, expected 'fp32', 'bf16', 'topk:FRACTION' with 0 < FRACTION <= 1, or 'onebit'")
