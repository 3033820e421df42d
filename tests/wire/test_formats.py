"""Each wire format: what it rounds, selects and sends."""

import numpy as np
import pytest
from encoding import CHUNK, DTYPES, SIZES, bits, draw, travel, values_type
from hypothesis import example, given
from hypothesis import strategies as st

from mpidl.wire import ErrorFeedback, parse
from mpidl.wire.wire import BLOCK, WithOrigin
from rows import in_turn


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


def test_bytes_of_int8():
    assert parse("int8").size(2048, np.float32) == 2048 + 2 * 4
    assert parse("int8").size(1025, np.float64) == 1032 + 2 * 8


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


def largest(values, count):
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:count])


@given(size=SIZES, dtype=DTYPES, fraction=st.floats(0.001, 1), seed=st.integers(0, 99), levels=st.integers(1, 50))
def test_topk_sends_exactly_the_largest_and_of_equal_ones_the_first(size, dtype, fraction, seed, levels):
    # Few levels make many ties.
    values = np.round(draw(size, dtype, seed) * levels / 4) / values_type(dtype)(levels)
    assert_largest_sent(values, fraction)


DISTRIBUTIONS = {
    "normal": lambda r, n: r.normal(size=n),
    "equal": lambda r, n: np.full(n, -0.1),
    "zero": lambda r, n: np.zeros(n),
    "sparse": lambda r, n: r.normal(size=n) * (r.random(n) < 0.005),
    "narrow": lambda r, n: 1 + 1e-5 * r.random(n),
    "wide": lambda r, n: np.exp(15 * r.normal(size=n)),
    "subnormal": lambda r, n: 1e-40 * r.normal(size=n),
}
FRACTIONS = [(0.0001, "float32"), (0.01, "float64"), (0.3, "float32"), (0.9, "float64"), (0.01, "float32")]


@pytest.mark.parametrize(("distribution", "fraction", "dtype"), in_turn(DISTRIBUTIONS, FRACTIONS, each=2))
def test_topk_sends_the_largest_of_each_block_however_it_is_distributed(distribution, fraction, dtype):
    assert_largest_sent(DISTRIBUTIONS[distribution](np.random.default_rng(4), CHUNK).astype(dtype), fraction)


def assert_largest_sent(values, fraction):
    wire = parse(f"topk:{fraction!r}")
    feedback = ErrorFeedback(wire, values.size, values.dtype)
    blocks = [values[start : start + BLOCK] for start in range(0, values.size, BLOCK)]
    counts = [max(1, int(np.floor(fraction * block.size + 0.5))) for block in blocks]
    expected = np.concatenate([BLOCK * i + largest(*each) for i, each in enumerate(zip(blocks, counts, strict=True))])
    count = sum(counts)
    data = np.zeros(wire.size(values.size, values.dtype), np.uint8)
    feedback.encode_chunks(0, values, values.size, data)
    sent = np.zeros(values.size, values.dtype)
    end = count * values.itemsize
    assert np.array_equal(data[end : end + 4 * count].view(np.uint32), expected)
    assert np.array_equal(bits(data[:end].view(values.dtype)), bits(values[expected]))
    wire.decode(data, sent)
    assert np.flatnonzero(sent).tolist() == np.intersect1d(expected, np.flatnonzero(values)).tolist()
    values = values.copy()
    values[expected] = 0
    assert np.array_equal(feedback.residual, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 7, 1001, CHUNK])
def test_topk_of_everything_changes_nothing(dtype, size):
    values = draw(size, dtype, 1)
    values[::5], values[3::5], values[4::5] = -0.0, np.nan, -np.inf
    feedback = ErrorFeedback(parse("topk:1"), size, dtype)
    for _ in range(2):
        assert np.array_equal(bits(travel(parse("topk:1"), feedback, values)), bits(values))
        assert not feedback.residual.any()


def test_topk_refuses_an_index_beyond_the_chunk():
    wire, values = parse("topk:0.5"), np.ones(4, np.float32)
    data = np.zeros(wire.size(4, np.float32), np.uint8)
    wire.encode(values, np.zeros_like(values), data)
    data.view(np.uint32)[3] = 4
    with pytest.raises(IndexError, match="topk: index beyond"):
        wire.decode(data, values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wire", ["fp32", "bf16", "topk:0.5"])
@given(size=st.integers(1, 37), seed=st.integers(0, 2**32))
def test_both_rows_arrive(wire, dtype, size, seed):
    encoding = WithOrigin(parse(wire))
    sent = np.random.default_rng(seed).standard_normal((2, size)).astype(dtype)
    data, arrived, residual = np.zeros(encoding.size(size, np.dtype(dtype)), np.uint8), np.zeros_like(sent), sent[0] * 0
    encoding.encode(sent, residual, data)
    encoding.decode(data, arrived)
    assert np.array_equal(arrived[1], sent[1])
    if wire == "fp32":
        assert np.array_equal(arrived[0], sent[0])
    else:
        np.testing.assert_allclose(arrived[0] + residual, sent[0], rtol=1e-6)
