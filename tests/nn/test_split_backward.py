"""The way back through a layer in two parts: the gradient of the inputs first, those of the weights later."""

import numpy as np
import pytest

from layer_cases import CASES, Alone, name_of


def spoil_scratch(alone):
    """Overwrite what a layer shares with others."""
    joins, shapes = alone.layer.joins, [each.shape[1:] for each in alone.inputs]
    for name, buffer in alone.layer.buffers(*(shapes if joins else shapes[:1])).items():
        if not buffer.per_sample and not buffer.kept:
            alone.work.buffers[name].fill(7)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_both_parts_together_are_the_whole(case):
    whole, parts = Alone(*case), Alone(*case)
    y = whole.random.normal(size=whole.outputs.shape)
    whole.backward(y)
    outputs, inputs = parts.forward().copy(), [each.copy() for each in parts.inputs]
    parts.first_part(y)
    # The first part leaves alone the weights' gradients, and what others need.
    assert all(np.isnan(each).all() for each in parts.gradients.values())
    np.testing.assert_array_equal(parts.outputs, outputs)
    for found, expected in zip(parts.inputs, inputs, strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(parts.input_gradients, whole.input_gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    spoil_scratch(parts)
    parts.second_part()
    without = Alone(*case)
    without.first_part(y, needed=False)
    without.second_part()
    for name, expected in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[name], expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(without.gradients[name], expected, rtol=1e-12, atol=1e-13)
