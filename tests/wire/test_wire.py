"""Wire formats: decoded values, residuals and numbers of bytes."""

import re
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.wire import ErrorFeedback, parse
from mpidl.wire.wire import BLOCK

FORMATS = ["bf16", "topk:0.01", "topk:0.3", "topk:1", "onebit"]
#: Number of elements in a chunk of float32.
CHUNK = 131072
SIZES = st.integers(1, 5000)
DTYPES = st.sampled_from(["float32", "float64"])


def travel(wire, feedback, values):
    data = np.full(wire.size(values.size, values.dtype), 0xA5, np.uint8)
    given = values.copy()
    feedback.encode_chunks(0, values, values.size, data)
    assert np.array_equal(bits(values), bits(given))
    decoded = np.full_like(values, np.nan)
    wire.decode(data, decoded)
    return decoded


def draw(size, dtype, seed, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=size)).astype(dtype)


def bits(values):
    return values.view(f"uint{8 * values.itemsize}")


def largest(values, count):
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:count])


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=40)
@given(size=SIZES, dtype=DTYPES, seed=st.integers(0, 99), scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e20]))
@example(size=CHUNK, dtype="float32", seed=0, scale=1.0)
@example(size=CHUNK // 2, dtype="float64", seed=0, scale=1.0)
def test_sent_and_residual_are_gradient_and_previous_residual(name, size, dtype, seed, scale):
    wire = parse(name)
    feedback = ErrorFeedback(wire, size, dtype)
    for step in range(3):
        values, before = draw(size, dtype, [seed, step], scale), feedback.residual.copy()
        whole = values + before
        decoded = travel(wire, feedback, values)
        assert np.array_equal(feedback.residual, whole - decoded)
        lost = np.abs(decoded + feedback.residual - whole)
        # An element far below its block's mean is rounded to the mean's precision, in the residual and in this sum.
        rounding = np.finfo(dtype).eps * (np.abs(feedback.residual) + np.abs(whole))
        assert np.all(lost <= (rounding if name == "onebit" else 0))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_lost_over_many_pushes(name, dtype):
    # With one bit, an element far above its block's mean waits for some 2000 pushes until the mean is as large.
    wire, size, steps = parse(name), 3001, 3000
    feedback = ErrorFeedback(wire, size, dtype)
    values, arrived, waiting, errors = draw(size, dtype, 1), np.zeros(size), [], []
    for step in (steps, 2 * steps):
        for _ in range(steps):
            arrived += travel(wire, feedback, values)
        waiting.append(np.abs(feedback.residual).max())
        errors.append(np.abs(arrived / step - values).max())
        # The rounding of the format in its dtype, and of this sum in float64.
        rounding = step * ((np.abs(values).max() + waiting[-1]) * np.finfo(dtype).eps + 2e-16 * np.abs(arrived).max())
        assert np.abs(arrived + feedback.residual - step * values.astype(float)).max() <= rounding
    assert waiting[1] <= 1.2 * waiting[0]
    assert errors[1] <= max(0.7 * errors[0], rounding / steps)


@settings(deadline=None, max_examples=80)
@given(size=SIZES, dtype=DTYPES, fraction=st.floats(0.001, 1), seed=st.integers(0, 99), levels=st.integers(1, 50))
def test_topk_sends_exactly_the_largest_and_of_equal_ones_the_first(size, dtype, fraction, seed, levels):
    # Few levels make many ties.
    values = np.round(draw(size, dtype, seed) * levels / 4) / values_type(dtype)(levels)
    assert_largest_sent(values, fraction)


@pytest.mark.parametrize("fraction", [0.0001, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "make",
    [
        lambda r, n: r.normal(size=n),
        lambda r, n: np.full(n, -0.1),
        lambda r, n: np.zeros(n),
        lambda r, n: r.normal(size=n) * (r.random(n) < 0.005),
        lambda r, n: 1 + 1e-5 * r.random(n),
        lambda r, n: np.exp(15 * r.normal(size=n)),
        lambda r, n: 1e-40 * r.normal(size=n),
    ],
    ids=["normal", "equal", "zero", "sparse", "narrow", "wide", "subnormal"],
)
def test_topk_sends_the_largest_of_each_block_however_it_is_distributed(make, dtype, fraction):
    assert_largest_sent(make(np.random.default_rng(4), CHUNK).astype(dtype), fraction)


def values_type(dtype):
    return np.dtype(dtype).type


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


def nearest_even(single):
    """Return the rounded upper halves of float32, by comparing the lower half with half a unit in the last place."""
    below, cut = single.view(np.uint32) >> 16, single.view(np.uint32) & 0xFFFF
    up = (cut > 0x8000) | ((cut == 0x8000) & (below % 2 == 1))
    return below + up


@settings(deadline=None, max_examples=200)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["bf16", "onebit"])
def test_what_is_not_finite_arrives_and_leaves_no_residual(name, dtype):
    feedback = ErrorFeedback(parse(name), 4, dtype)
    decoded = travel(parse(name), feedback, np.array([np.inf, np.nan, 1.0, -np.inf], dtype))
    assert not np.isfinite(decoded[[0, 1, 3]]).any()
    assert feedback.residual.tolist() == [0, 0, 0, 0]
    assert np.isfinite(travel(parse(name), feedback, np.ones(4, dtype))).all()


@settings(deadline=None, max_examples=60)
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


@pytest.mark.parametrize("name", FORMATS)
def test_a_chunk_within_a_shard_has_its_own_residual(name):
    wire = parse(name)
    feedback, alone = ErrorFeedback(wire, 100, np.float32), ErrorFeedback(wire, 10, np.float32)
    # The output may be longer than needed.
    data = np.zeros(wire.size(10, np.float32) + 3, np.uint8)
    for seed in range(3):
        feedback.encode_chunks(40, draw(10, np.float32, seed), 10, data)
        travel(wire, alone, draw(10, np.float32, seed))
    assert np.array_equal(feedback.residual[40:50], alone.residual)
    assert not feedback.residual[:40].any()
    assert not feedback.residual[50:].any()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 63, 64, 640, 700])
def test_chunks_go_into_consecutive_slots_and_nothing_between_them(name, dtype, size):
    wire, chunk, start = parse(name), 64, 128
    stride = wire.size(chunk, dtype) + 16
    count = -(-size // chunk)
    together, alone = ErrorFeedback(wire, start + size, dtype), ErrorFeedback(wire, start + size, dtype)
    for seed in range(3):
        values = draw(size, dtype, seed)
        out, expected = np.full((2, count * stride), 0xA5, np.uint8)
        nbytes = together.encode_chunks(start, values, chunk, out, stride)
        for number in range(count):
            part = slice(number * chunk, (number + 1) * chunk)
            length = alone.encode_chunks(start + part.start, values[part], chunk, expected[number * stride :])
            assert length == wire.size(values[part].size, dtype)
        assert nbytes == (count - 1) * stride + length
        assert np.array_equal(out, expected)
        assert np.array_equal(together.residual, alone.residual)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_round_trip_is_what_a_server_receives(name, in_place):
    wire, chunk, size = parse(name), 64, 700
    one, other = ErrorFeedback(wire, size, np.float32), ErrorFeedback(wire, size, np.float32)
    stride = wire.size(chunk, np.float32)
    for seed in range(3):
        values = draw(size, np.float32, seed)
        slots = np.empty(11 * stride, np.uint8)
        expected = np.full_like(values, np.nan)
        nbytes = one.encode_chunks(0, values, chunk, slots, stride)
        for number in range(11):
            wire.decode(slots[number * stride : (number + 1) * stride], expected[number * chunk :][:chunk])
        decoded = values if in_place else np.full_like(values, np.nan)
        assert other.round_trip(values, chunk, decoded) == nbytes
        assert np.array_equal(decoded, expected)
        assert np.array_equal(one.residual, other.residual)


@pytest.mark.parametrize("name", FORMATS)
def test_encoding_allocates_nothing(name):
    wire, values = parse(name), draw(8 * CHUNK, np.float32, 0)
    feedback, stride = ErrorFeedback(wire, values.size, np.float32), wire.size(CHUNK, np.float32)
    out = np.empty(8 * stride, np.uint8)
    feedback.encode_chunks(0, values, CHUNK, out, stride)
    tracemalloc.start()
    feedback.encode_chunks(0, values, CHUNK, out, stride)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096


@pytest.mark.parametrize("name", FORMATS)
def test_threads_share_a_format(name):
    wire = parse(name)

    def push(seed, wait=lambda: None):
        values, residual = draw(CHUNK, np.float32, seed), np.zeros(CHUNK, np.float32)
        data = np.zeros(wire.size(CHUNK, np.float32), np.uint8)
        wait()
        for _ in range(300):
            wire.encode(values, residual, data)
        return residual

    expected = [push(seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as threads:
        assert np.array_equal(list(threads.map(push, range(2), [Barrier(2).wait] * 2)), expected)


def test_topk_refuses_an_index_beyond_the_chunk():
    wire, values = parse("topk:0.5"), np.ones(4, np.float32)
    data = np.zeros(wire.size(4, np.float32), np.uint8)
    wire.encode(values, np.zeros_like(values), data)
    data.view(np.uint32)[3] = 4
    with pytest.raises(IndexError, match="topk: index beyond"):
        wire.decode(data, values)


def test_bytes():
    assert parse("bf16").size(CHUNK, np.float32) == 2 * CHUNK
    assert 4 * CHUNK / parse("topk:0.01").size(CHUNK, np.float32) >= 40
    assert 4 * CHUNK / parse("onebit").size(CHUNK, np.float32) >= 30
    sizes = range(1, 2100)
    for name in FORMATS:
        assert all(parse(name).size(n, dtype) % 8 == 0 for n in sizes for dtype in ("float32", "float64"))
    assert [parse("bf16").size(n, np.float64) for n in (1, 4, 5)] == [8, 8, 16]
    # Counts of 0.5, 1.5 and 2.5 elements are rounded up.
    assert [parse("topk:0.5").size(n, np.float64) for n in (1, 2, 3, 4, 5)] == [16, 16, 24, 24, 40]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_the_name_that_it_was_parsed_from(name):
    assert parse(name).name == name
    assert parse("topk:0.123456789").name == "topk:0.123456789"


@pytest.mark.parametrize("text", ["", "fp16", "topk", "topk:", "topk:0", "topk:1.5", "topk:2", "topk:nan", "bf16:2"])
def test_what_is_no_format_is_an_error_in_one_line(text):
    expected = "expected 'fp32', 'bf16', 'topk:FRACTION' with 0 < FRACTION <= 1, or 'onebit'"
    with pytest.raises(UsageError, match=f"^{re.escape(f'wire: {text!r}, {expected}')}$"):
        parse(text)


def test_vectors_as_they_are_need_no_format():
    assert parse("fp32") is None


def test_parsing_does_not_import_numba():
    code = "import sys; from mpidl.wire import parse; parse('topk:0.1'), parse('onebit'); print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
