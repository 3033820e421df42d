"""One bit: signs, and means of each block."""

import numpy as np
import pytest
from encoding import CHUNK, DTYPES, SIZES, draw, travel, values_type
from hypothesis import example, given
from hypothesis import strategies as st

from mpidl.wire import ErrorFeedback, parse


@given(size=SIZES, dtype=DTYPES, seed=st.integers(0, 99), shift=st.sampled_from([-9, -1, 0, 0.5, 9]))
@example(size=CHUNK, dtype="float32", seed=0, shift=0)
def test_onebit_sends_signs_and_the_means_of_each_block(size, dtype, seed, shift):
    values = draw(size, dtype, seed) + values_type(dtype)(shift)
    values[::3] *= 0
    wire = parse("onebit")
    data = np.zeros(wire.size(size, dtype), np.uint8)
    decoded = np.empty_like(values)
    wire.encode(values, np.zeros_like(values), data)
    wire.decode(data, decoded)
    blocks = range(0, size, 1024)
    means = data[: 2 * len(blocks) * values.itemsize].view(dtype).reshape(-1, 2)
    signs = data[means.nbytes :]
    for number, start in enumerate(blocks):
        block = values[start : start + 1024]
        for mean, kind in zip(means[number], (block >= 0, block < 0), strict=True):
            assert mean == pytest.approx(block[kind].astype(float).mean() if kind.any() else 0, rel=1e-6)
        width = -(-block.size // 64) * 8
        columns = np.unpackbits(signs[start // 8 : start // 8 + width, None], axis=1, bitorder="little")
        assert np.array_equal(columns.T.ravel()[: block.size], block >= 0)
        assert np.array_equal(decoded[start : start + 1024], np.where(block >= 0, *means[number]))


def test_onebit_means_of_both_kinds_are_precise_whatever_the_other():
    values = np.array([1e-12, 3e-12, -1e12, -3e12])
    decoded = travel(parse("onebit"), ErrorFeedback(parse("onebit"), 4, np.float64), values)
    assert decoded == pytest.approx([2e-12, 2e-12, -2e12, -2e12], rel=1e-12)
