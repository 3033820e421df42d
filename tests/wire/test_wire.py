"""Wire formats: what arrives, what is left for the next push, and how many bytes travel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.wire import ErrorFeedback, parse

FORMATS = ["bf16", "topk:0.01", "topk:0.3", "topk:1", "onebit"]
SIZES = st.integers(1, 5000)
DTYPES = st.sampled_from(["float32", "float64"])


def travel(wire, feedback, values):
    data = np.zeros(wire.size(values.size, values.dtype), np.uint8)
    feedback.encode(0, values, data)
    decoded = np.full_like(values, np.nan)
    wire.decode(data, decoded)
    return decoded


def draw(size, dtype, seed):
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=40)
@given(size=SIZES, dtype=DTYPES, seed=st.integers(0, 99))
def test_sent_and_residual_are_gradient_and_previous_residual(name, size, dtype, seed):
    wire = parse(name)
    feedback = ErrorFeedback(wire, size, dtype)
    for step in range(3):
        values, before = draw(size, dtype, [seed, step]), feedback.residual.copy()
        decoded = travel(wire, feedback, values)
        if name.startswith("topk"):
            assert np.array_equal(decoded + feedback.residual, values + before)
        else:
            assert np.allclose(decoded + feedback.residual, values + before, rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_lost_over_many_pushes(name, dtype):
    wire, size = parse(name), 3001
    feedback = ErrorFeedback(wire, size, dtype)
    pushed, arrived = np.zeros(size), np.zeros(size)
    for step in range(50):
        values = draw(size, dtype, step)
        pushed += values
        arrived += travel(wire, feedback, values)
    assert np.allclose(arrived + feedback.residual, pushed, rtol=0, atol=1e-3 if dtype == "float32" else 1e-5)


@settings(deadline=None, max_examples=60)
@given(size=SIZES, dtype=DTYPES, fraction=st.floats(0.001, 1), seed=st.integers(0, 99), levels=st.integers(1, 50))
def test_topk_sends_exactly_the_largest_and_of_equal_ones_the_first(size, dtype, fraction, seed, levels):
    # Few levels make many ties.
    values = np.round(draw(size, dtype, seed) * levels / 4) / levels
    wire = parse(f"topk:{fraction}")
    feedback = ErrorFeedback(wire, size, dtype)
    decoded = travel(wire, feedback, values)
    largest = np.sort(np.argsort(-np.abs(values), kind="stable")[: wire.count(size)])
    expected = np.zeros_like(values)
    expected[largest] = values[largest]
    assert np.array_equal(decoded, expected)
    kept = values.copy()
    kept[largest] = 0
    assert np.array_equal(feedback.residual, kept)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_topk_of_everything_changes_nothing(dtype):
    values = draw(1001, dtype, 1)
    feedback = ErrorFeedback(parse("topk:1"), 1001, dtype)
    assert np.array_equal(travel(parse("topk:1"), feedback, values), values)
    assert not feedback.residual.any()


def test_bf16_rounds_to_nearest_even():
    one = 0x3F800000
    bits = np.array(
        [one, one + 0x7FFF, one + 0x8000, one + 0x8001, one + 0x18000, one + 0x17FFF, 0x1, 0x8000, 0x8001, 0x80000001,
         0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC00000], np.uint32,
    )  # fmt: skip
    values = bits.view(np.float32)
    decoded = travel(parse("bf16"), ErrorFeedback(parse("bf16"), bits.size, np.float32), values)
    halves = decoded.view(np.uint32) >> 16
    assert halves[:13].tolist() == [
        0x3F80, 0x3F80, 0x3F80, 0x3F81, 0x3F82, 0x3F81, 0, 0, 1, 0x8000, 0x7F80, 0x7F80, 0xFF80,
    ]  # fmt: skip
    assert np.isnan(decoded[13:]).all()


def test_bf16_leaves_no_residual_of_what_is_not_finite():
    feedback = ErrorFeedback(parse("bf16"), 3, np.float32)
    travel(parse("bf16"), feedback, np.array([np.inf, np.nan, 1.0], np.float32))
    assert feedback.residual.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_onebit_sends_signs_and_the_means_of_each_block(dtype):
    values = draw(2500, dtype, 2)
    decoded = travel(parse("onebit"), ErrorFeedback(parse("onebit"), 2500, dtype), values)
    for start in range(0, 2500, 1024):
        block, sent = values[start : start + 1024].astype(float), decoded[start : start + 1024]
        assert sent[block >= 0] == pytest.approx(block[block >= 0].mean(), rel=1e-5)
        assert sent[block < 0] == pytest.approx(block[block < 0].mean(), rel=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_a_chunk_within_a_shard_has_its_own_residual(name):
    wire = parse(name)
    feedback = ErrorFeedback(wire, 100, np.float32)
    data = np.zeros(wire.size(10, np.float32), np.uint8)
    feedback.encode(40, draw(10, np.float32, 3), data)
    assert not feedback.residual[:40].any()
    assert not feedback.residual[50:].any()


def test_bytes():
    chunk = 131072
    assert parse("bf16").size(chunk, np.float32) == 2 * chunk
    assert 4 * chunk / parse("topk:0.01").size(chunk, np.float32) >= 40
    assert 4 * chunk / parse("onebit").size(chunk, np.float32) >= 30
    assert all(parse(name).size(n, np.float32) % 8 == 0 for name in FORMATS for n in range(1, 70))


@pytest.mark.parametrize("text", ["", "fp16", "topk", "topk:", "topk:0", "topk:1.5", "topk:-1", "topk:nan", "bf16:2"])
def test_what_is_no_format_is_an_error_in_one_line(text):
    with pytest.raises(UsageError, match=rf"^wire: '{text}', expected 'fp32', 'bf16', 'topk:FRACTION'"):
        parse(text)


def test_vectors_as_they_are_need_no_format():
    assert parse("fp32") is None
