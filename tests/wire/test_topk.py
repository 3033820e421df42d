"""Top-k: the largest of each block are sent."""

import numpy as np
import pytest
from encoding import CHUNK, DTYPES, SIZES, bits, draw, travel, values_type
from hypothesis import given
from hypothesis import strategies as st

from mpidl.wire import ErrorFeedback, parse
from mpidl.wire.wire import BLOCK
from rows import in_turn


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
