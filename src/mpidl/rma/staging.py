"""Moving arrays between a device and MPI, directly or through pinned host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.device import pinned
from mpidl.errors import UsageError


def cuda_aware() -> bool:
    """Return whether the MPI library claims to accept pointers to device memory."""
    try:
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    except AttributeError:
        return False


def keeps_device_values(xp: Any) -> bool:
    """Return whether values survive a put and a get of CuPy's memory; an MPI that isn't CUDA-aware may crash."""
    values = xp.arange(1 << 16, dtype=xp.float32)
    back = xp.zeros_like(values)
    xp.cuda.get_current_stream().synchronize()
    window = MPI.Win.Allocate(values.nbytes, 1, comm=MPI.COMM_SELF)
    window.Lock_all()
    window.Put((values, values.nbytes, MPI.BYTE), 0)
    window.Flush(0)
    window.Get((back, back.nbytes, MPI.BYTE), 0)
    window.Flush(0)
    window.Unlock_all()
    window.Free()
    return bool((values == back).all())


def is_direct(transfer: str) -> bool:
    """Return whether MPI is given device memory itself, as ``device.transfer`` asks for.

    "auto" is direct if the MPI library claims to be CUDA-aware. Raise UsageError for "direct" if it isn't.
    """
    if transfer == "staged":
        return False
    aware = cuda_aware()
    if transfer == "direct" and not aware:
        raise UsageError(
            "device.transfer: 'direct', but this MPI library isn't CUDA-aware; expected 'auto' or 'staged'"
        )
    return aware


class Staging:
    """Moves arrays between a device and the MPI operations of one window.

    This is the only place where MPI waits for the device: the stream is synchronised before MPI gets memory that the
    device may still read or write. A transfer through the host borrows the smallest free piece of pinned memory that is
    large enough, and gives it back when its target is flushed.

    `xp` is CuPy. If `direct`, MPI gets the device's memory itself.
    """

    def __init__(self, xp: Any, direct: bool) -> None:
        self._xp, self._direct = xp, direct
        self._free: list[np.ndarray] = []
        self._lent: dict[int, list[np.ndarray]] = {}
        self._arriving: dict[int, list[tuple[Any, np.ndarray]]] = {}

    def another(self) -> Staging:
        """Return one for other operations, which are flushed at other times."""
        return Staging(self._xp, self._direct)

    def outgoing(self, values: Any, rank: int) -> Any:
        """Return the array that MPI reads in the place of `values`, until `rank` is flushed."""
        if self._direct and isinstance(values, self._xp.ndarray):
            return self._memory(values)
        return self.on_host(values, rank)

    def incoming(self, values: Any, rank: int) -> Any:
        """Return the array that MPI writes in the place of `values`, which have arrived once `rank` is flushed."""
        if not isinstance(values, self._xp.ndarray):
            return values
        if self._direct:
            return self._memory(values)
        host = self._lend(values, rank)
        self._arriving.setdefault(rank, []).append((values, host))
        return host

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        """Return `values` if they are the host's, else a copy there, until `rank` is flushed."""
        host: np.ndarray = values
        if not isinstance(values, self._xp.ndarray):
            return host
        host = self._lend(values, rank)
        values.get(out=host, blocking=False)
        self._synchronise()
        return host

    def flushed(self, rank: int) -> None:
        """Finish the transfers with `rank`, which MPI has completed."""
        arrived = self._arriving.get(rank)
        if arrived:
            for values, host in arrived:
                values.set(host)
            arrived.clear()
            self._synchronise()
        lent = self._lent.get(rank)
        if lent:
            self._free += lent
            lent.clear()

    def _lend(self, values: Any, rank: int) -> np.ndarray:
        size = values.nbytes
        fitting = [(memory.nbytes, number) for number, memory in enumerate(self._free) if memory.nbytes >= size]
        memory = self._free.pop(min(fitting)[1]) if fitting else pinned(self._xp, (size,), np.uint8)
        self._lent.setdefault(rank, []).append(memory)
        lent: np.ndarray = memory[:size].view(values.dtype).reshape(values.shape)
        return lent

    def _memory(self, values: Any) -> MPI.buffer:
        self._synchronise()
        return MPI.buffer.fromaddress(values.data.ptr, values.nbytes)

    def _synchronise(self) -> None:
        self._xp.cuda.get_current_stream().synchronize()
