"""int8: integers times a scale per block."""

import numpy as np
from encoding import DTYPES, SIZES, draw, travel
from hypothesis import given
from hypothesis import strategies as st

from mpidl.wire import ErrorFeedback, parse

BLOCK = 1024


@given(size=SIZES, dtype=DTYPES, seed=st.integers(0, 99), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e20]))
def test_values_are_rounded_to_the_nearest_multiple_of_their_blocks_scale(size, dtype, seed, scale):
    values = draw(size, dtype, seed, scale)
    decoded = travel(parse("int8"), ErrorFeedback(parse("int8"), size, dtype), values)
    for start in range(0, size, BLOCK):
        block, arrived = values[start : start + BLOCK], decoded[start : start + BLOCK]
        step = np.abs(block).max() / 127
        assert np.abs(arrived - block).max() <= step * (0.5 + 1e-4)
        assert np.abs(arrived / step - np.rint(arrived / step)).max() < 1e-3


def test_integers_up_to_127_arrive_as_they_are():
    values = np.append(np.arange(-127, 128), np.zeros(2000)).astype(np.float32)
    assert np.array_equal(travel(parse("int8"), ErrorFeedback(parse("int8"), values.size, np.float32), values), values)


def test_a_block_that_is_not_finite_arrives_as_nan_and_others_as_they_are():
    values = np.ones(2 * BLOCK, np.float32)
    values[3] = np.inf
    feedback = ErrorFeedback(parse("int8"), values.size, np.float32)
    decoded = travel(parse("int8"), feedback, values)
    assert np.isnan(decoded[:BLOCK]).all()
    assert np.array_equal(decoded[BLOCK:], values[BLOCK:])
    assert not feedback.residual.any()


def test_the_smallest_numbers_leave_a_residual_and_no_infinity():
    values = np.full(5, np.finfo(np.float32).smallest_subnormal, np.float32)
    feedback = ErrorFeedback(parse("int8"), 5, np.float32)
    decoded = travel(parse("int8"), feedback, values)
    assert np.array_equal(decoded + feedback.residual, values)


def test_bytes():
    assert parse("int8").size(2048, np.float32) == 2048 + 2 * 4
    assert parse("int8").size(1025, np.float64) == 1032 + 2 * 8
