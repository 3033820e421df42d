"""Convolution by patches and by tiles, in blocks of any size, equals its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer_cases import Alone
from mpidl.nn import Conv2d, winograd
from mpidl.nn.layers import conv2d


def by_definition(layer, inputs, weight, bias):
    """Return the cross-correlation of images with a weight, at stride 1."""
    down, across = weight.shape[:2]
    padded = np.pad(inputs, ((0, 0), *np.broadcast_to(np.reshape(layer.padding, (2, -1)), (2, 2)), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (down, across), axis=(1, 2))
    return np.einsum("nyxcuv,uvck->nyxk", windows, weight) + bias


@given(
    size=st.sampled_from([3, 5]),
    padding=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=2, max_size=2),
    image=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    depth=st.integers(8, 11),
    channels=st.integers(8, 13),
    samples=st.integers(1, 5),
    memory=st.sampled_from([1, 3000, 30000, 1 << 19]),
)
def test_tiles_of_any_block(size, padding, image, depth, channels, samples, memory):
    layer = Conv2d(channels, size, padding=padding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "TILES", memory)
        alone = Alone(layer, (*image, depth), samples=samples)
        inputs, weight, bias = alone.variables
        expected = by_definition(layer, inputs, weight, bias)
        np.testing.assert_allclose(alone.forward(), expected, rtol=1e-11, atol=1e-11)
        y = alone.random.normal(size=expected.shape)
        gradients = [gradient.copy() for gradient in alone.backward(y)]
    # The convolution is linear in the inputs and in the weight, so the gradients are tested as adjoints.
    x, w = alone.random.normal(size=inputs.shape), alone.random.normal(size=weight.shape)
    assert np.vdot(gradients[0], x) == pytest.approx(np.vdot(y, by_definition(layer, x, weight, 0)))
    assert np.vdot(gradients[1], w) == pytest.approx(np.vdot(y, by_definition(layer, inputs, w, 0)))
    np.testing.assert_allclose(gradients[2], y.sum(axis=(0, 1, 2)))


@pytest.mark.parametrize("memory", [1, 500, 1 << 19])
@pytest.mark.parametrize(
    ("size", "padding", "image"),
    [
        (3, [1, 2], (7, 9, 2)),
        (3, [1, 2], (7, 9, 1)),
        ([2, 5], [0, 4], (5, 2, 1)),
        (5, [4, 0], (1, 6, 1)),
        (3, [[2, 0], [0, 1]], (7, 9, 1)),
        (4, [[0, 3], [3, 1]], (6, 5, 2)),
    ],
)
def test_patches_of_any_block(size, padding, image, memory, monkeypatch):
    monkeypatch.setattr(conv2d, "PATCHES", memory)
    layer = Conv2d(3, size, padding=padding)
    alone = Alone(layer, image, samples=5)
    inputs, weight, bias = alone.variables
    np.testing.assert_allclose(alone.forward(), by_definition(layer, inputs, weight, bias), rtol=1e-11, atol=1e-11)
    y = alone.random.normal(size=alone.outputs.shape)
    gradients = [gradient.copy() for gradient in alone.backward(y)]
    x, w = alone.random.normal(size=inputs.shape), alone.random.normal(size=weight.shape)
    assert np.vdot(gradients[0], x) == pytest.approx(np.vdot(y, by_definition(layer, x, weight, 0)))
    assert np.vdot(gradients[1], w) == pytest.approx(np.vdot(y, by_definition(layer, inputs, w, 0)))


def test_which_windows_tiles_compute():
    def tiled(layer, shape):
        return "tiles" in layer.buffers(shape)

    assert tiled(Conv2d(8, 3), (9, 9, 8))
    assert tiled(Conv2d(8, 5, padding="same"), (9, 9, 8))
    for layer, shape in (
        (Conv2d(8, 3), (9, 9, 7)),
        (Conv2d(7, 3), (9, 9, 8)),
        (Conv2d(8, 3, stride=2), (9, 9, 8)),
        (Conv2d(8, [3, 5]), (9, 9, 8)),
        (Conv2d(8, 7), (9, 9, 8)),
        (Conv2d(8, 3, groups=2), (9, 9, 8)),
    ):
        assert not tiled(layer, shape)
