"""Initial weights: their distribution and their fans."""

from math import sqrt

import numpy as np
import pytest

from mpidl.nn import INITIALISERS
from mpidl.nn.initialisers import fans

INPUTS, OUTPUTS = 301, 203
VARIANCES = {"glorot": 2 / (INPUTS + OUTPUTS), "he": 2 / INPUTS, "lecun": 1 / INPUTS}


def draw(name, dtype="float64", seed=0):
    values = np.full(INPUTS * OUTPUTS, np.nan, dtype)
    INITIALISERS[name](np.random.default_rng(seed), (INPUTS, OUTPUTS), values)
    return values


@pytest.mark.parametrize("name", [name for name in INITIALISERS if name != "zeros"])
def test_distribution(name):
    source, _, distribution = name.partition("_")
    deviation = sqrt(VARIANCES[source])
    values = draw(name)
    count = values.size
    assert abs(values.mean()) < 5 * deviation / sqrt(count)
    assert values.std() == pytest.approx(deviation, rel=0.02)
    fourth = np.mean((values / deviation) ** 4)
    assert fourth == pytest.approx({"uniform": 9 / 5, "normal": 3}[distribution], rel=0.05)
    if distribution == "uniform":
        assert np.abs(values).max() <= deviation * sqrt(3)


@pytest.mark.parametrize("name", INITIALISERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_and_seed(name, dtype):
    values = draw(name, dtype)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(values, draw(name, dtype))
    assert (name == "zeros") == np.array_equal(values, draw(name, dtype, seed=1))
    assert (name == "zeros") == (not values.any())


def test_windows_multiply_both_fans():
    assert fans((5, 7)) == (5, 7)
    assert fans((3, 2, 5, 7)) == (30, 42)
