"""Every layer computes on a GPU what it computes on the CPU.

On the stand-in for CuPy, whose kernels are the same sources, and on CuPy itself where there is a GPU.
"""

import sys

import numpy as np
import pytest
from layer_cases import CASES, Alone, name_of

import fake_cupy


def gpu():
    """Whether there is one."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except (ImportError, RuntimeError):
        return False


STAND_IN = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")
GPU = pytest.mark.skipif(not gpu(), reason="no GPU")


@pytest.fixture(params=[pytest.param("stand-in", marks=STAND_IN), pytest.param("GPU", marks=GPU)])
def cupy(request, monkeypatch):
    """CuPy, or what stands in for it."""
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake())
    import cupy

    return cupy


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_layer_computes_the_same(cupy, case, dtype):
    host, device = Alone(*case, dtype=dtype), Alone(*case, dtype=dtype, xp=cupy)
    y = host.random.normal(size=host.outputs.shape).astype(dtype)
    tolerance = {"float32": {"rtol": 1e-4, "atol": 1e-4}, "float64": {"rtol": 1e-12, "atol": 1e-12}}[dtype]
    for _ in range(2):
        np.testing.assert_allclose(device.forward().get(), host.forward(), **tolerance)
        for found, expected in zip(device.backward(cupy.asarray(y)), host.backward(y), strict=True):
            assert isinstance(found, cupy.ndarray)
            np.testing.assert_allclose(found.get(), expected, **tolerance)
