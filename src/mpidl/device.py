"""The devices that ranks compute on: the CPU, or one of the node's GPUs each."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from mpidl.errors import UsageError

#: Files of the drivers of GPUs: NVIDIA's, also under Windows' Linux, and AMD's.
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


class Device(NamedTuple):
    """The device of a rank.

    Attributes
    ----------
    xp
        The arrays' package: NumPy, or CuPy with the rank's device as the current one.
    name : str
        The GPU's name, or ``"the CPU"``.
    reason : str
        The reason why ``"auto"`` takes no GPU of a node that has one, or empty.
    """

    xp: Any
    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def choose(kind: str, number: int) -> Device:
    """Return the device of a rank, and make its GPU the current one.

    Raise UsageError if a GPU was requested, but none was found.

    Parameters
    ----------
    kind : str
        ``"cpu"``, ``"cuda"``, or ``"auto"``: on a GPU if there is one that works.
    number : int
        This rank's number among those of its node that compute on GPUs, which get the GPUs in turn.
    """
    if kind == "cpu":
        return Device(np, "the CPU")
    found = _gpu(number)
    if isinstance(found, Device):
        return found
    if kind == "cuda":
        raise UsageError(f"device.kind: 'cuda', but {found}")
    return Device(np, "the CPU", found if any(map(os.path.exists, GPU_FILES)) else "")


def _gpu(number: int) -> Device | str:
    """Return one of the GPUs after a test computation, or the reason why there is none."""
    try:
        import cupy
    except ModuleNotFoundError:
        return "CuPy isn't installed: pip install 'mpidl[cuda12]', or [cuda13] for newer drivers"
    except ImportError as error:
        return f"CuPy can't be imported: {_line(error)}"
    try:
        number %= cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device(number).use()
        # The compiler and the library of matrix products may be missing though CuPy is there.
        square = cupy.ones((2, 2), np.float32) + 1
        if float(cupy.matmul(square, square).sum()) != 32:
            return f"GPU {number} computes wrong results"
        return Device(cupy, cupy.cuda.runtime.getDeviceProperties(number)["name"].decode())
    except Exception as error:  # CuPy has many errors, and broken installations have others
        return f"no GPU that CuPy can use: {_line(error)}"


def pinned(xp: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a host array in pinned memory, which a GPU copies at full speed; `xp` is CuPy."""
    dtype = np.dtype(dtype)
    memory = xp.cuda.alloc_pinned_memory(int(np.prod(shape)) * dtype.itemsize)
    return np.ndarray(shape, dtype, buffer=memory)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def to_host(values: Any) -> np.ndarray:
    """Return a host array itself, or a copy of a device's array on the host."""
    on_host: np.ndarray = values.get() if hasattr(values, "get") else values
    return on_host


def from_host(values: np.ndarray, out: Any) -> None:
    """Copy a host array into an array on the host or a device."""
    if hasattr(out, "set"):
        out.set(values)
    else:
        out[:] = values
