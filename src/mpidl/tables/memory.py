"""Memory that grows without being copied, taken from the machine as it is written; and prefetching in loops."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.jit import Compiled

#: Linux's flag for memory that isn't counted before it is written.
MAP_NORESERVE = 0x4000
#: Bytes of a huge page: of their multiples, huge pages are moved as they are.
PAGE = 1 << 21
#: Bytes from which on huge pages are asked for, and there must be memory for growth.
LARGE = 1 << 25
#: Bytes that growth leaves to the machine, which kills processes when it has no more, and what it says of its memory.
RESERVE, OF_MACHINE = 1 << 28, Path("/proc/meminfo")


class Growing:
    """An array of zeros that grows: its pages get another address, which takes less than a millisecond.

    Parameters
    ----------
    shape : tuple of int
        That of an element.
    dtype : dtype
    huge : bool
        Whether a large array is in huge pages. Each takes some time when it is first written: milliseconds, where the
        machine is a virtual one.

    Attributes
    ----------
    array : array (elements, *shape)
        Another one after `grow`; nothing else may refer to it then.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, huge: bool = True) -> None:
        self._shape, self._dtype, self._huge = shape, np.dtype(dtype), huge
        self._bytes = prod(shape) * self._dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._memory = mmap.mmap(-1, _whole_pages(self._bytes), flags=flags)
        self.array = self._view()

    def grow(self, elements: int) -> None:
        """Have at least that many; raise MemoryError without memory for them, or without address space."""
        if elements <= len(self.array):
            return
        needed = elements * self._bytes
        del self.array
        # A quarter more, or else no more than that: where address space is limited, nearly all can be used.
        present = len(self._memory)
        for size in (max(needed, present * 5 // 4), needed):
            if size >= LARGE and size - present > _available() - RESERVE:
                continue
            with suppress(OSError):
                self._memory.resize(_whole_pages(size))
                break
        self.array = self._view()
        if elements > len(self.array):
            raise MemoryError(f"{needed} bytes of memory")
        if self._huge and len(self._memory) >= LARGE:
            with suppress(OSError):  # a kernel without huge pages
                self._memory.madvise(mmap.MADV_HUGEPAGE)

    def _view(self) -> np.ndarray:
        count = len(self._memory) // self._bytes
        values = np.frombuffer(self._memory, self._dtype, count * prod(self._shape))
        return values.reshape(count, *self._shape)


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _available() -> float:
    """Return the bytes of memory that the machine has left for processes; infinity if it doesn't say."""
    with suppress(OSError):
        for line in OF_MACHINE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return inf


@Compiled
def prefetch() -> Any:
    """Have an element of a contiguous array, by its place, read into the cache; the loop doesn't wait for it."""
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    tools: Any = cgutils  # It has no types.

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = tools.create_struct_proxy(signature.args[0])(context, builder, array).data
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # For reading, to stay in all caches, as data.
        modes = [ir.Constant(number, mode) for mode in (0, 3, 1)]
        builder.call(function, [builder.bitcast(builder.gep(data, [place]), byte), *modes])
        return context.get_dummy_value()

    @intrinsic
    def prefetch(context, array, place):  # type: ignore[no-untyped-def]
        return types.void(array, types.intp), generate

    return prefetch
