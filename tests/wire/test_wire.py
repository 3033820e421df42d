"""All wire formats: decoded values, residuals and numbers of bytes."""

import re
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from encoding import CHUNK, DTYPES, SIZES, draw, travel
from hypothesis import example, given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.wire import ErrorFeedback, parse
from rows import in_turn

FORMATS = ["bf16", "int8", "topk:0.01", "topk:0.3", "topk:1", "onebit"]


@pytest.mark.parametrize("name", FORMATS)
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


@pytest.mark.parametrize(("name", "dtype"), in_turn(FORMATS, [("float32",), ("float64",)]))
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["bf16", "int8", "onebit"])
def test_what_is_not_finite_arrives_and_leaves_no_residual(name, dtype):
    feedback = ErrorFeedback(parse(name), 4, dtype)
    decoded = travel(parse(name), feedback, np.array([np.inf, np.nan, 1.0, -np.inf], dtype))
    assert not np.isfinite(decoded[[0, 1, 3]]).any()
    assert feedback.residual.tolist() == [0, 0, 0, 0]
    assert np.isfinite(travel(parse(name), feedback, np.ones(4, dtype))).all()


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


@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    in_turn(FORMATS, [(1, "float32"), (63, "float64"), (64, "float32"), (640, "float64"), (700, "float32")], each=3),
)
def test_chunks_go_into_consecutive_slots_and_nothing_between_them(name, dtype, size):
    wire, chunk, start = parse(name), 64, 128
    stride = wire.size(chunk, dtype) + 16
    count = -(-size // chunk)
    together, alone = ErrorFeedback(wire, start + size, dtype), ErrorFeedback(wire, start + size, dtype)
    for seed in range(3):
        values = draw(size, dtype, seed)
        out, expected = np.full((2, count * stride), 0xA5, np.uint8)
        written = together.encode_chunks(start, values, chunk, out, stride)
        for number in range(count):
            part, slot = slice(number * chunk, (number + 1) * chunk), number * stride
            (own,) = alone.encode_chunks(start + part.start, values[part], chunk, expected[slot:])
            assert own == slice(0, wire.size(values[part].size, dtype))
            assert written[number] == slice(slot, slot + own.stop)
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
        (written,) = one.encode_chunks(0, values, chunk, slots, stride)
        for number in range(11):
            wire.decode(slots[number * stride : (number + 1) * stride], expected[number * chunk :][:chunk])
        decoded = values if in_place else np.full_like(values, np.nan)
        assert other.round_trip(values, chunk, decoded) == written.stop
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


@pytest.mark.parametrize(
    "text", ["", "fp16", "topk", "topk:", "topk:0", "topk:1.5", "topk:2", "topk:nan", "bf16:2", "factors"]
)
def test_what_is_no_format_is_an_error_in_one_line(text):
    expected = "expected 'fp32', 'bf16', 'int8', 'topk:FRACTION' with 0 < FRACTION <= 1, or 'onebit'"
    with pytest.raises(UsageError, match=f"^{re.escape(f'wire: {text!r}, {expected}')}$"):
        parse(text)


def test_a_format_is_no_longer_chosen_by_itself():
    with pytest.raises(UsageError, match=r"^wire: 'auto' is gone, `mpidl plan CONFIG --ranks N` recommends a format$"):
        parse("auto")


def test_vectors_as_they_are_need_no_format():
    assert parse("fp32") is None


def test_parsing_does_not_import_numba():
    code = (
        f"import sys; from mpidl.wire import parse; [parse(name) for name in {FORMATS}]; print('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
