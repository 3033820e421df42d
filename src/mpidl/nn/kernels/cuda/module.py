"""CUDA C++ sources, compiled by CuPy at the first use of a kernel and kept in its cache on disk."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 256
#: More blocks than any GPU runs at a time; each thread strides over the elements by the size of the grid.
MOST_BLOCKS = 1 << 14
#: Largest count for indices of 32 bits, whose divisions are several times faster; one more stride still fits.
NARROW = (1 << 31) - 1 - THREADS * MOST_BLOCKS

#: Types by the characters of their dtypes, whose names take longer to find than a kernel to launch.
REALS = {"f": np.float32, "d": np.float64}

#: The beginning of every source.
PRELUDE = """
typedef {real} Real;
typedef {index} Index;
#define KERNEL extern "C" __global__ void
#define EACH(i, count) \\
    for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < (count); i += gridDim.x * (Index)blockDim.x)
"""


class CudaModule:
    """The kernels in a ``.cu`` file beside this one; elements are of type ``Real``, indices of type ``Index``.

    Parameters
    ----------
    name : str
        Name of the file, without its suffix.
    header : str, optional
        Name of a ``.cuh`` file with functions that the kernels call, without its suffix.
    """

    def __init__(self, name: str, header: str | None = None) -> None:
        self.path = Path(__file__).with_name(f"{name}.cu")
        self._header = "" if header is None else Path(__file__).with_name(f"{header}.cuh").read_text()

    def source(self, dtype: str, wide: bool) -> str:
        """Return the source for float32 or float64 elements, with indices of 64 bits if `wide`, else of 32 bits."""
        real = {"float32": "float", "float64": "double"}[dtype]
        return PRELUDE.format(real=real, index="long long" if wide else "int") + self._header + self.path.read_text()

    def launch(self, kernel: str, count: int, *arguments: Any) -> None:
        """Run a kernel, which takes `count` and then the arguments.

        Parameters
        ----------
        count : int
            Number of threads, one for each element of the result.
        arguments
            C-contiguous CuPy arrays, the first of type ``Real``; integers, which become ``Index``; and floats, which
            become ``Real``.
        """
        import cupy

        arrays = [each for each in arguments if isinstance(each, cupy.ndarray)]
        assert all(each.flags.c_contiguous for each in arrays)
        if not count:
            return
        real = arrays[0].dtype.char
        wide = max(count, *[each.size for each in arrays]) > NARROW
        kinds = {int: np.int64 if wide else np.int32, float: REALS[real]}
        values = [kinds[type(each)](each) if type(each) in kinds else each for each in (count, *arguments)]
        compiled = _compiled(cupy, self, kernel, real, wide)
        compiled((min(-(-count // THREADS), MOST_BLOCKS),), (THREADS,), tuple(values))


@cache
def _compiled(cupy: Any, module: CudaModule, kernel: str, real: str, wide: bool) -> Any:
    return _loaded(cupy, module, np.dtype(real).name, wide).get_function(kernel)


@cache
def _loaded(cupy: Any, module: CudaModule, dtype: str, wide: bool) -> Any:
    return cupy.RawModule(code=module.source(dtype, wide))
