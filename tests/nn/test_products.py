"""Products are right whatever the shapes and strides, on a GPU too, and convolutions on shorter vectors."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.nn.kernels import cuda
from mpidl.nn.kernels.cpu.codelets import BYTES
from mpidl.nn.kernels.cpu.matrices import matmul

sizes = st.integers(1, 50)


def strided(random, shape, dtype, step):
    """Return a random array whose rows have a stride larger than their length."""
    whole = random.normal(size=(*shape[:-2], shape[-2] * step, shape[-1])).astype(dtype)
    return whole[..., ::step, :]


@given(
    pairs=st.none() | st.integers(1, 3),
    n=sizes, k=st.integers(1, 50) | st.integers(127, 260), m=sizes,
    dtype=st.sampled_from(["float32", "float64"]),
    transposed=st.booleans(), add=st.booleans(),
    steps=st.tuples(*[st.integers(1, 2)] * 3), seed=st.integers(0, 9),
)  # fmt: skip
def test_products(pairs, n, k, m, dtype, transposed, add, steps, seed):
    random = np.random.default_rng(seed)
    batch = () if pairs is None else (pairs,)
    a = strided(random, (*batch, k, n) if transposed else (*batch, n, k), dtype, steps[0])
    a = a.swapaxes(-1, -2) if transposed else a
    b = strided(random, (*batch, k, m), dtype, steps[1])
    memory = random.normal(size=(*batch, n * steps[2] + 1, m)).astype(dtype)
    before, out = memory.copy(), memory[..., : n * steps[2] : steps[2], :]
    expected = a.astype("float64") @ b.astype("float64") + (out if add else 0)
    matmul(a, b, out, add)
    bound = {"float32": 1e-5, "float64": 1e-13}[dtype] * max(1, np.sqrt(k))
    np.testing.assert_allclose(out, expected, rtol=0, atol=bound * max(1, np.abs(expected).max()))
    # The memory around the result is unchanged.
    before[..., : n * steps[2] : steps[2], :] = out
    np.testing.assert_array_equal(memory, before)


def test_what_it_does_not_overwrite_may_be_anything():
    out = np.full((5, 7), np.nan)
    matmul(np.ones((5, 3)), np.ones((3, 7)), out)
    np.testing.assert_array_equal(out, 3)


# A machine without AVX-512 has none of these, or they are its own, with which the other tests run.
HALF_AS_LONG = pytest.param("+avx,+avx2,+fma", marks=pytest.mark.skipif(BYTES == 32, reason="no AVX-512"))


@pytest.mark.long
@pytest.mark.parametrize("features", [HALF_AS_LONG, ""])
def test_on_machines_with_shorter_vectors(features):
    variables = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    convolutions = Path(__file__).with_name("test_convolution.py")
    chosen = [f"{convolutions}::{test}" for test in ("test_tiles_of_any_block", "test_patches_of_any_block")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


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
            cuda.matmul(laid_out(cupy, a, how_a), laid_out(cupy, b, how_b), found, add)
            np.testing.assert_allclose(found.get(), a @ b + add * out, rtol=1e-5, atol=1e-5)


def test_one_matrix_for_all_pairs(cupy):
    a, b = RANDOM.normal(size=(4, 3)), RANDOM.normal(size=(5, 3, 2))
    out = cupy.empty((5, 4, 2))
    cuda.matmul(cupy.asarray(a), cupy.asarray(b), out)
    np.testing.assert_allclose(out.get(), a @ b, rtol=1e-12)
    out = cupy.empty((5, 2, 4))
    cuda.matmul(cupy.asarray(b).swapaxes(1, 2), cupy.asarray(a).T, out)
    np.testing.assert_allclose(out.get(), b.swapaxes(1, 2) @ a.T, rtol=1e-12)


def test_parts_beside_the_result_stay_as_they_are(cupy):
    whole = cupy.ones((4, 6))
    cuda.matmul(cupy.ones((4, 5)), cupy.ones((5, 2)), whole[:, 3:5])
    np.testing.assert_array_equal(whole.get()[0], [1, 1, 1, 5, 5, 1])
