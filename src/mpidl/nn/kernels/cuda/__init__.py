"""Kernels for CuPy arrays, with the same names and arguments as those of `mpidl.nn.kernels.cpu`.

They are written in CUDA C++, compiled by CuPy at their first use and kept in its cache on disk, or are CuPy's own
operations and those of cuBLAS where these suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.nn.kernels.cpu.elementwise import LEAK, axes_of, threshold_of

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


#: The factors 0 and 1 of a product and of earlier contents, and their addresses in the host's memory.
FACTORS = {dtype: np.array([0, 1], dtype) for dtype in "fd"}
ADDRESSES = {dtype: (each.ctypes.data, each.ctypes.data + each.itemsize) for dtype, each in FACTORS.items()}


def matmul(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """Multiply matrices as `mpidl.nn.kernels.cpu.matrices.matmul` does, without copying any of them."""
    import cupy

    if not out.size:
        return
    *pairs, n, m = out.shape
    cublas, dtype = cupy.cuda.cublas, out.dtype.char
    product = cublas.sgemmStridedBatched if dtype == "f" else cublas.dgemmStridedBatched
    zero, one = ADDRESSES[dtype]
    (how_a, *place_a), (how_b, *place_b), (how, *place) = (_storage(each) for each in (a, b, out))
    assert how == 0
    # Columns are contiguous in cuBLAS, so it computes the transpose of the product.
    product(
        cupy.cuda.device.get_cublas_handle(), how_b, how_a, m, n, a.shape[-1],
        one, *place_b, *place_a, one if add else zero, *place, *(pairs or (1,)),
    )  # fmt: skip


def _storage(matrices: Any) -> tuple[int, int, int, int]:
    """Return 0 if rows are contiguous or 1 if columns are, the address, and the distances of these and of matrices."""
    size, (rows, columns), (down, across) = matrices.itemsize, matrices.shape[-2:], matrices.strides[-2:]
    step = matrices.strides[0] // size if matrices.ndim == 3 else 0
    if across == size or columns == 1:
        return 0, matrices.data.ptr, max(1, columns, down // size if rows > 1 else 1), step
    return 1, matrices.data.ptr, max(1, rows, across // size), step


CONTRAST, DROPOUT, ELEMENTWISE = CudaModule("contrast"), CudaModule("dropout"), CudaModule("elementwise")
NORMALISATION, ROWS = CudaModule("normalisation"), CudaModule("rows")
PATCHES, POOLING = CudaModule("patches", "sliding_windows"), CudaModule("pooling", "sliding_windows")
#: Rows that one thread sums.
SUMMED_ROWS = 64


def _elementwise(kernel: str, *constants: float) -> Callable[..., None]:
    """Return a function of arrays of one shape that runs a kernel with one thread per element."""

    def apply(*arrays: Any) -> None:
        ELEMENTWISE.launch(kernel, arrays[0].size, *arrays, *constants)

    return apply


relu, backprop_relu = _elementwise("relu"), _elementwise("backprop_relu")
leaky_relu, backprop_leaky_relu = _elementwise("leaky_relu", LEAK), _elementwise("backprop_leaky_relu", LEAK)
backprop_sigmoid, backprop_tanh = _elementwise("backprop_sigmoid"), _elementwise("backprop_tanh")
gelu, backprop_gelu = _elementwise("gelu"), _elementwise("backprop_gelu")


def add_row(matrix: Any, row: Any) -> None:
    matrix += row


def sum_rows(matrix: Any, row: Any) -> None:
    """Sum as a tree, in the matrix's dtype."""
    import cupy

    rows, columns = matrix.shape
    while rows > SUMMED_ROWS:
        count = -(-rows // SUMMED_ROWS)
        sums = cupy.empty((count, columns), matrix.dtype)
        ROWS.launch("sum_rows", sums.size, matrix, sums, rows, columns, SUMMED_ROWS)
        matrix, rows = sums, count
    ROWS.launch("sum_rows", columns, matrix, row, rows, columns, SUMMED_ROWS)


def take_rows(matrix: Any, ids: Any, outputs: Any) -> None:
    ROWS.launch("take_rows", outputs.size, matrix, ids, outputs, matrix.shape[1])


def take_columns(matrix: Any, places: Any, outputs: Any) -> None:
    import cupy

    outputs[...] = matrix[:, cupy.asarray(places)]


def add_to_rows(matrix: Any, ids: Any, rows: Any) -> None:
    ROWS.launch("add_to_rows", matrix.size, matrix, ids, rows, matrix.shape[1], ids.size)


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
    DROPOUT.launch(
        "dropout", outputs.size, inputs, factors, outputs, 1 / (1 - rate), *words, *shape,
        *(np.int64(each) for each in (first, *steps[:-1])),
    )  # fmt: skip


def gather_patches(images: Any, patches: Any, windows: Any, row: int, channel: int) -> None:
    geometry = _patch_geometry(images, patches, windows, row, channel)
    PATCHES.launch("gather_patches", patches.size, images, patches, *geometry)


def patch_matrix(images: Any, patches: Any, windows: Any, row: int, channel: int) -> Any:
    gather_patches(images, patches, windows, row, channel)
    return patches.reshape(prod(patches.shape[:3]), -1)


def scatter_patches(patches: Any, images: Any, windows: Any, row: int, channel: int) -> None:
    """Sum with one thread per pixel and channel over its windows, in the same order in every run."""
    n, height, width, _ = images.shape
    _, rows, _, down, _, depth = patches.shape
    # The rows of pixels that these windows cover.
    first = max(0, row * windows.stride[0] - windows.padding[0])
    stop = min(height, (row + rows - 1) * windows.stride[0] - windows.padding[0] + down)
    geometry = _patch_geometry(images, patches, windows, row, channel)
    pixels = n * max(0, stop - first) * width
    PATCHES.launch("scatter_patches", pixels * depth, patches, images, *geometry, first, stop - first)


def _patch_geometry(images: Any, patches: Any, windows: Any, row: int, channel: int) -> tuple[int, ...]:
    return (*images.shape[1:], *patches.shape[1:], *windows.stride, *windows.padding, row, channel)


def max_pool(images: Any, outputs: Any, winners: Any, windows: Any) -> None:
    POOLING.launch("max_pool", outputs.size, images, outputs, winners, *_pool_geometry(images, windows))


def backprop_max_pool(winners: Any, output_gradient: Any, input_gradient: Any) -> None:
    n, channels = len(winners), winners.shape[-1]
    pixels, positions = input_gradient.size // (n * channels), winners.size // (n * channels)
    geometry = (pixels, channels, positions)
    POOLING.launch("backprop_max_pool", input_gradient.size, output_gradient, input_gradient, winners, *geometry)


def pool(images: Any, outputs: Any, windows: Any, squares: bool) -> None:
    POOLING.launch("pool", outputs.size, images, outputs, int(squares), *_pool_geometry(images, windows))


def backprop_pool(
    images: Any, outputs: Any, output_gradient: Any, input_gradient: Any, windows: Any, squares: bool
) -> None:
    arrays = (images, outputs, output_gradient, input_gradient)
    POOLING.launch("backprop_pool", input_gradient.size, *arrays, int(squares), *_pool_geometry(images, windows))


def _pool_geometry(images: Any, windows: Any) -> tuple[int, ...]:
    return (*images.shape[1:], *windows.positions, *windows.size, *windows.stride, *windows.padding)


def column_moments(values: Any, mean: Any, variance: Any) -> None:
    values.mean(axis=0, out=mean)
    values.var(axis=0, out=variance)


def normalise_columns(values: Any, mean: Any, inverse: Any, scale: Any, shift: Any, outputs: Any) -> None:
    arrays = (values, mean, inverse, scale, shift, outputs)
    NORMALISATION.launch("normalise_columns", values.size, *arrays, values.shape[1])


def backprop_scale_shift(
    values: Any, mean: Any, inverse: Any, gradient: Any, scale_gradient: Any, shift_gradient: Any
) -> None:
    gradient.sum(axis=0, out=shift_gradient)
    _backprop_scale(values, mean, inverse, gradient, scale_gradient)


def backprop_columns(
    values: Any, mean: Any, inverse: Any, scale: Any, scale_gradient: Any, shift_gradient: Any, gradient: Any,
    value_gradient: Any,
) -> None:  # fmt: skip
    arrays = (values, mean, inverse, scale, scale_gradient, shift_gradient, gradient, value_gradient)
    NORMALISATION.launch("backprop_columns", values.size, *arrays, values.shape[1])


def normalise_rows(values: Any, epsilon: float, scale: Any, shift: Any, outputs: Any, mean: Any, inverse: Any) -> None:
    arguments = (values, float(epsilon), scale, shift, outputs, mean, inverse, values.shape[1])
    NORMALISATION.launch("normalise_rows", len(values), *arguments)


def backprop_rows(
    values: Any, mean: Any, inverse: Any, scale: Any, gradient: Any, scale_gradient: Any, shift_gradient: Any,
    value_gradient: Any,
) -> None:  # fmt: skip
    gradient.sum(axis=0, out=shift_gradient)
    _backprop_scale(values, mean[:, None], inverse[:, None], gradient, scale_gradient)
    arrays = (values, mean, inverse, scale, gradient, value_gradient)
    NORMALISATION.launch("backprop_rows", len(values), *arrays, values.shape[1])


def _backprop_scale(values: Any, mean: Any, inverse: Any, gradient: Any, scale_gradient: Any) -> None:
    """Sum (values - mean) * inverse * gradient over the rows, without storing the products."""
    import cupy

    _summed_products(cupy)(values, mean, inverse, gradient, out=scale_gradient, axis=0)


@cache
def _summed_products(cupy: Any) -> Any:
    return cupy.ReductionKernel(
        "T value, T mean, T inverse, T gradient", "T total",
        "(value - mean) * inverse * gradient", "a + b", "total = a", "0", "mpidl_backprop_scale",
    )  # fmt: skip


def channel_moments(images: Any, mean: Any, variance: Any) -> None:
    CONTRAST.launch("channel_moments", mean.size, images, mean, variance, images.shape[1])


def normalise_contrast(images: Any, local_mean: Any, deviation: Any, outputs: Any) -> None:
    CONTRAST.launch("normalise_contrast", images.size, images, local_mean, deviation, outputs, images.shape[1])


def contrast_slopes(
    outputs: Any, output_gradient: Any, deviation: Any, threshold: float, slopes: Any, sums: Any
) -> None:
    arguments = (outputs, output_gradient, deviation, float(threshold), slopes, sums, outputs.shape[1])
    CONTRAST.launch("contrast_slopes", deviation.size, *arguments)


def backprop_contrast(
    outputs: Any, output_gradient: Any, deviation: Any, slopes: Any, shifts: Any, input_gradient: Any
) -> None:
    arguments = (outputs, output_gradient, deviation, slopes, shifts, input_gradient, outputs.shape[1])
    CONTRAST.launch("backprop_contrast", outputs.size, *arguments)
