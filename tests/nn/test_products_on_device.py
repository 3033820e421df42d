"""cuBLAS is told how matrices lie: any that have contiguous rows or columns, in any pairs."""

import itertools

import numpy as np
import pytest

from mpidl.nn.kernels.cuda import matmul

RANDOM = np.random.default_rng(5)


def laid_out(cupy, values, how):
    """Return the same matrices: contiguous, transposed, or as a part of larger ones."""
    device = cupy.asarray(values)
    if how == "columns":
        return cupy.ascontiguousarray(device.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "part":
        whole = cupy.zeros((*values.shape[:-1], values.shape[-1] + 3), values.dtype)
        whole[..., 2:-1] = device
        return whole[..., 2:-1]
    if how == "by position" and values.ndim == 3:
        return cupy.ascontiguousarray(device.swapaxes(0, 1)).swapaxes(0, 1)
    return device


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "k", "m"), [(5, 3, 7), (1, 4, 1), (3, 1, 2), (1, 1, 1), (4, 6, 1), (1, 5, 3), (2, 0, 3)])
def test_matrices_of_all_layouts(cupy, dtype, n, k, m):
    hows = ("rows", "columns", "part", "by position")
    for pairs, (how_a, how_b), add in itertools.product(((), (3,)), itertools.product(hows, hows), (False, True)):
        a, b, out = (RANDOM.normal(size=(*pairs, *shape)).astype(dtype) for shape in ((n, k), (k, m), (n, m)))
        for how in ("rows", "part", "by position"):
            found = laid_out(cupy, out, how)
            matmul(laid_out(cupy, a, how_a), laid_out(cupy, b, how_b), found, add)
            np.testing.assert_allclose(found.get(), a @ b + add * out, rtol=1e-5, atol=1e-5)


def test_one_matrix_for_all_pairs(cupy):
    a, b = RANDOM.normal(size=(4, 3)), RANDOM.normal(size=(5, 3, 2))
    out = cupy.empty((5, 4, 2))
    matmul(cupy.asarray(a), cupy.asarray(b), out)
    np.testing.assert_allclose(out.get(), a @ b, rtol=1e-12)
    out = cupy.empty((5, 2, 4))
    matmul(cupy.asarray(b).swapaxes(1, 2), cupy.asarray(a).T, out)
    np.testing.assert_allclose(out.get(), b.swapaxes(1, 2) @ a.T, rtol=1e-12)


def test_parts_beside_the_result_stay_as_they_are(cupy):
    whole = cupy.ones((4, 6))
    matmul(cupy.ones((4, 5)), cupy.ones((5, 2)), whole[:, 3:5])
    np.testing.assert_array_equal(whole.get()[0], [1, 1, 1, 5, 5, 1])
