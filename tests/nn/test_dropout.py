"""Dropout: how many elements are set to zero, and which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer_cases import Alone
from mpidl.data import Batch
from mpidl.nn import Dropout, Flatten, MeanSquaredError, Network, kernels
from mpidl.nn.kernels.cpu.elementwise import DRAWS, draw
from mpidl.parameters import Box, Range, strides


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


def test_numbers_are_those_of_philox():
    """The known answers of the paper's library."""
    draws = np.empty(4, np.uint32)
    for counter, key, expected in (
        (0, [0, 0, 0, 0], "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, [2**32 - 1] * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x85A308D3243F6A88, [0xA4093822, 0x299F31D0, 0x13198A2E, 0x03707344], "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        draw(np.array(key, np.uint64), np.uint64(counter), draws)
        assert " ".join(f"{draw:08x}" for draw in draws) == expected


def mask(shape, first=0, distances=None, xp=np, key=(1, 2, 3, 4), dtype="float32"):
    """Return which elements are kept."""
    arrays = [xp.ones(shape, dtype) for _ in range(3)]
    kernels.of(xp).dropout(*arrays, 0.3, key, first, distances)
    outputs = arrays[2]
    return (outputs if xp is np else outputs.get()) != 0


@st.composite
def boxes(draw):
    """The shape of an array, and a box of it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    pairs = [sorted(draw(st.sets(st.integers(0, extent), min_size=2, max_size=2))) for extent in shape]
    return shape, Box(tuple(Range(*each) for each in pairs))


@given(boxes(), st.integers(0, 2**40))
def test_a_box_has_the_mask_of_the_whole(found, first):
    shape, box = found
    whole, expected = Box.whole(shape), mask(shape, first)[box.slices(Box.whole(shape))]
    np.testing.assert_array_equal(mask(box.shape, first + box.offset(whole), strides(shape)), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gpu_leaves_out_the_same(cupy, dtype):
    for shape, first, distances in (
        ((5, 7, 3, 9), 0, None),
        ((2, 3, 4, 5), 2**33 + 3, (7 * 8 * 9, 8 * 9, 9, 1)),
        ((4, 1001), 17, (2003, 1)),
    ):
        expected = mask(shape, first, distances, dtype=dtype)
        np.testing.assert_array_equal(mask(shape, first, distances, cupy, dtype=dtype), expected)


def test_rows_longer_than_what_is_drawn_at_a_time():
    whole = mask((3, 3 * DRAWS + 5))
    assert not np.array_equal(whole[0], whole[1])
    assert abs(whole.mean() - 0.7) < 5 * np.sqrt(0.21 / whole.size)
    np.testing.assert_array_equal(mask((1, 2 * DRAWS), 3 * DRAWS + 5 + 3), whole[1:2, 3 : 3 + 2 * DRAWS])


def test_a_layer_draws_by_its_place_in_the_uncut_layer():
    outputs = []

    class Watching(MeanSquaredError):
        def loss_and_gradient(self, xp, found, *arguments):
            outputs.append(found.reshape(5, 6, 4).copy())
            return super().loss_and_gradient(xp, found, *arguments)

    network = Network([Flatten(), Dropout(0.5)], (6, 4), seed=3, loss=Watching())
    inputs, targets = np.ones((5, 6, 4), np.float32), np.zeros((5, 24), np.float32)
    for number in (0, 0, 1):
        network.loss_and_gradient(Batch(inputs, targets, number))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])
    # Rows 2 to 5 of samples 3 and 4, as another rank has them: by the seed, the layer and the minibatch.
    key = np.random.SeedSequence([3, 1, 1]).generate_state(4).tolist()
    part = Alone(Dropout(0.5), (3, 4), samples=2, dtype="float32")
    part.inputs[0][...] = 1
    part.work.key, part.work.first, part.work.strides = lambda: key, 3 * 24 + 2 * 4, (24, 4, 1)
    np.testing.assert_array_equal(part.forward(), outputs[2][3:5, 2:5])
