"""Dropout: how many elements are set to zero, and which."""

import numpy as np
import pytest
from layer_cases import Alone

from mpidl.nn import Dropout


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elements_are_left_out_or_scaled(rate, dtype):
    alone = Alone(Dropout(rate), (50, 40), samples=10, dtype=dtype)
    alone.inputs[0][...] = 3
    outputs = alone.forward()
    kept = outputs != 0
    np.testing.assert_allclose(outputs[kept], 3 / (1 - rate), rtol=1e-6)
    # Within five standard deviations, for 20,000 draws.
    assert abs(kept.mean() - (1 - rate)) <= 5 * np.sqrt(rate * (1 - rate) / kept.size)
    np.testing.assert_allclose(alone.backward(1)[0], kept / (1 - rate), rtol=1e-6)


def test_evaluation_leaves_nothing_out():
    alone = Alone(Dropout(0.9), (50,), training=False)
    np.testing.assert_array_equal(alone.forward(), alone.inputs[0])
