"""Fetches as encoded differences, which a copy follows; and statistics, which travel as they are."""

import tracemalloc

import numpy as np
import pytest
from encoding import bits, draw
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range
from mpidl.transport.capacity import MailboxGeometry
from mpidl.wire import Differences, ErrorFeedback, WithOrigin, WithStatistics, encoded_bytes, parse
from mpidl.wire.feedback import CHUNK

FORMATS = ["bf16", "int8", "topk:0.1", "topk:1", "onebit"]


def ends(name, size, dtype="float32"):
    return tuple(Differences(parse(name), np.empty(size, dtype)) for _ in range(2))


@pytest.mark.parametrize("name", FORMATS)
@given(size=st.sampled_from([1, 7, 1023, 5001, CHUNK, CHUNK + 9]), dtype=st.sampled_from(["float32", "float64"]))
def test_both_ends_have_the_same_bits(name, size, dtype):
    server, worker = ends(name, size, dtype)
    parameters = draw(size, dtype, 0)
    server.copy(parameters)
    worker.copy(server.values)
    encoded = np.empty(encoded_bytes(parse(name), size, dtype), np.uint8)
    assert server.nbytes == encoded.size
    for step in range(1, 4):
        parameters += draw(size, dtype, step, 0.1)
        before, behind = parameters.copy(), np.linalg.norm(parameters - server.values)
        server.encode(parameters, encoded)
        worker.decode(encoded)
        assert np.array_equal(parameters, before)
        assert np.array_equal(bits(server.values), bits(worker.values))
        assert np.linalg.norm(parameters - server.values) < behind


@pytest.mark.parametrize("name", FORMATS)
def test_what_one_difference_leaves_out_is_in_the_next(name):
    """The copy after each fetch is that of a reference that keeps the error apart (Tang et al. 2019)."""
    copy, size = ends(name, 2500, "float64")[0], 2500
    parameters = draw(size, "float64", 0)
    assert copy.fetch(parameters) == parameters.nbytes
    reference, error, before = parameters.copy(), np.zeros(size), parameters.copy()
    wire = parse(name)
    data = np.empty(wire.size(size, "float64"), np.uint8)
    for step in range(1, 30):
        parameters += draw(size, "float64", step, 0.1)
        change, arrived = parameters - before, np.empty(size)
        wire.encode(change, error, data)
        wire.decode(data, arrived)
        reference, before = reference + arrived, parameters.copy()
        assert copy.fetch(parameters) == data.size
        # The two take differences in another order; a rounding may change what is nearest.
        if name in ("topk:0.1", "topk:1", "onebit"):
            np.testing.assert_allclose(copy.values, reference, rtol=0, atol=1e-9)
        np.testing.assert_allclose(copy.values + error, parameters, rtol=0, atol=0.1)


@pytest.mark.parametrize("name", FORMATS)
def test_a_copy_comes_as_near_as_it_likes_to_parameters_that_rest(name):
    copy, parameters = ends(name, 3001)[0], draw(3001, "float32", 1)
    copy.copy(np.zeros_like(parameters))
    for _ in range(200 if name != "onebit" else 3000):
        copy.fetch(parameters)
    np.testing.assert_allclose(copy.values, parameters, rtol=0, atol=1e-5 if name != "onebit" else 0.02)


@pytest.mark.parametrize("name", FORMATS)
def test_shards_that_begin_at_blocks_receive_what_a_whole_vector_does(name):
    size, cut = 5 * 1024 + 77, 3 * 1024
    whole, (first, second) = ends(name, size)[0], (ends(name, cut)[0], ends(name, size - cut)[0])
    parameters = draw(size, "float32", 0)
    for step in range(4):
        nbytes = first.fetch(parameters[:cut]) + second.fetch(parameters[cut:])
        assert abs(nbytes - whole.fetch(parameters)) <= 16
        assert np.array_equal(np.append(first.values, second.values), whole.values)
        parameters += draw(size, "float32", step + 1, 0.1)


@pytest.mark.parametrize("name", FORMATS)
def test_a_fetch_allocates_nothing(name):
    copy, parameters = ends(name, 2 * CHUNK + 5)[0], draw(2 * CHUNK + 5, "float32", 0)
    for _ in range(2):
        copy.fetch(parameters)
    tracemalloc.start()
    copy.fetch(parameters)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096


CHUNKS = st.sampled_from([1, 7, 64, 700])


@st.composite
def ranges(draw):
    """Ranges in order, which may touch, of a shard; and its size."""
    ends = sorted(draw(st.lists(st.integers(0, 700), max_size=8, unique=True)))
    size = draw(st.integers(max([1, *ends]), 700))
    return [Range(*pair) for pair in zip(ends[::2], ends[1::2], strict=False)], size


def places(statistics):
    return np.array([place for part in statistics for place in range(*part)], int)


@pytest.mark.parametrize("name", FORMATS)
@given(shard=ranges(), chunk=CHUNKS, dtype=st.sampled_from(["float32", "float64"]), with_origin=st.booleans())
def test_statistics_arrive_as_they_are_and_all_else_as_without_them(name, shard, chunk, dtype, with_origin):
    (statistics, size), wire = shard, WithOrigin(parse(name)) if with_origin else parse(name)
    feedback = ErrorFeedback(wire, size, dtype, statistics)
    reference = ErrorFeedback(wire, size, dtype)
    apart = places(statistics)
    for step in range(3):
        values = draw((2, size) if with_origin else size, dtype, step, 100.0)
        given = values.copy()
        decoded, expected = np.full_like(values, np.nan), np.full_like(values, np.nan)
        feedback.round_trip(values, chunk, decoded)
        assert np.array_equal(bits(values), bits(given))
        vector, others = np.atleast_2d(values)[0], values.copy()
        np.atleast_2d(others)[0, apart] = 0
        reference.round_trip(others, chunk, expected)
        reference.residual[apart] = 0
        assert np.array_equal(bits(np.atleast_2d(decoded)[0, apart]), bits(vector[apart]))
        np.atleast_2d(expected)[0, apart] = vector[apart]
        assert np.array_equal(decoded, expected)
        assert np.array_equal(feedback.residual, reference.residual)


@pytest.mark.parametrize("name", FORMATS)
@given(shard=ranges(), chunk=CHUNKS, dtype=st.sampled_from(["float32", "float64"]))
def test_mailboxes_have_room_for_the_largest_chunk(name, shard, chunk, dtype):
    (statistics, size), wire, start = shard, parse(name), 1000
    chunk = min(chunk, size)
    encoding = WithStatistics(wire, statistics)
    sizes = [encoding.size(first, min(chunk, size - first), dtype) for first in range(0, size, chunk)]
    whole = [encoding.size(first, chunk, dtype) for first in range(0, size, chunk)]
    assert max(sizes) <= encoding.largest(chunk, dtype) == max(whole)
    assert all(each % 8 == 0 for each in sizes)
    geometry = MailboxGeometry.of(
        Range(start, start + size), 3, dtype, wire, chunk * np.dtype(dtype).itemsize,
        statistics=[part.shift(start) for part in statistics],
    )  # fmt: skip
    assert geometry.slot == encoding.largest(geometry.chunk, dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_copies_have_the_statistics_of_the_parameters(name):
    size, statistics = 2 * CHUNK + 9, [Range(0, 3), Range(CHUNK - 5, CHUNK + 7), Range(2 * CHUNK, 2 * CHUNK + 8)]
    server, worker = (Differences(parse(name), np.empty(size), statistics=statistics) for _ in range(2))
    parameters, apart = draw(size, "float64", 0), places(statistics)
    server.copy(parameters)
    worker.copy(parameters)
    data = np.empty(encoded_bytes(parse(name), size, "float64", statistics), np.uint8)
    assert data.size == server.nbytes
    for step in range(1, 4):
        parameters += draw(size, "float64", step)
        server.encode(parameters, data)
        worker.decode(data)
        assert np.array_equal(bits(server.values), bits(worker.values))
        np.testing.assert_allclose(worker.values[apart], parameters[apart], rtol=0, atol=1e-14)


def test_what_loses_nothing_sends_nothing_twice():
    for wire in (WithOrigin(None), parse("onebit")):
        encoding = WithStatistics(wire, [Range(2, 7)])
        assert encoding.size(0, 100, "float64") - wire.size(100, "float64") == (0 if wire.lossless else 5 * 8)
        assert encoding.size(7, 93, "float64") == wire.size(93, "float64")
