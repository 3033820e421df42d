"""bfloat16: rounding."""

import numpy as np
from encoding import DTYPES, bits, travel
from hypothesis import given
from hypothesis import strategies as st

from mpidl.wire import ErrorFeedback, parse


def nearest_even(single):
    """Return the rounded upper halves of float32, by comparing the lower half with half a unit in the last place."""
    below, cut = single.view(np.uint32) >> 16, single.view(np.uint32) & 0xFFFF
    up = (cut > 0x8000) | ((cut == 0x8000) & (below % 2 == 1))
    return below + up


@given(words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=100), dtype=DTYPES)
def test_bf16_is_rounded_to_nearest_even(words, dtype):
    single = np.array(words, np.uint32).view(np.float32)
    decoded = travel(parse("bf16"), ErrorFeedback(parse("bf16"), single.size, dtype), single.astype(dtype))
    number = ~np.isnan(single)
    halves = bits(decoded.astype(np.float32)) >> 16
    assert np.array_equal(halves[number], nearest_even(single)[number])
    assert np.isnan(decoded[~number]).all()


def test_bf16_of_what_lies_between():
    one = 0x3F800000
    cases = {
        one: 0x3F80, one + 0x7FFF: 0x3F80, one + 0x8000: 0x3F80, one + 0x8001: 0x3F81, one + 0x17FFF: 0x3F81,
        one + 0x18000: 0x3F82, 0x1: 0, 0x8000: 0, 0x8001: 1, 0x18000: 2, 0x80000000: 0x8000, 0x80000001: 0x8000,
        0x7F7FFFFF: 0x7F80, 0x7F800000: 0x7F80, 0xFF800000: 0xFF80, 0x7F800001: 0x7FC0,
        0x7FFFFFFF: 0x7FFF, 0xFFFFFFFF: 0xFFFF,
    }  # fmt: skip
    values = np.array(list(cases), np.uint32).view(np.float32)
    data = np.zeros(parse("bf16").size(values.size, np.float32), np.uint8)
    parse("bf16").encode(values, np.zeros_like(values), data)
    assert data.view(np.uint16)[: values.size].tolist() == list(cases.values())
