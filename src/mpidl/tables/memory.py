"""Memory that is reserved at once, and taken from the machine as it is written."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

#: Linux's flag for memory that isn't counted before it is written.
MAP_NORESERVE = 0x4000


def reserved(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros whose pages exist from their first write on, so that it never has to move.

    Raise MemoryError if the process may not have so large an address space.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    size = max(1, prod(shape) * np.dtype(dtype).itemsize)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise MemoryError(f"{size} bytes of address space: {error.strerror}") from None
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    array: np.ndarray = (
        np.frombuffer(memory, np.uint8)[: prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    )
    return array
