"""Gradients of weights that travel as factors."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from factored_gradients import factored_gradient
from mpidl.parameters import Range
from mpidl.wire import Factored, Factors, Matrix, Packing


@st.composite
def cases(draw):
    """Return weights in a vector, its size, a shard of it, a chunk's elements, and the samples of a minibatch."""
    matrices, end = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = end + draw(st.integers(0, 9))
        matrices.append(Matrix(start, draw(st.integers(1, 13)), draw(st.integers(1, 13))))
        end = matrices[-1].range.stop
    size = max(1, end + draw(st.integers(0, 9)))
    first = draw(st.integers(0, size - 1))
    shard = Range(first, draw(st.integers(first + 1, size)))
    most = draw(st.integers(1, 7))
    return matrices, size, shard, draw(st.integers(1, shard.size)), most, draw(st.integers(1, most))


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 2**32))
def test_each_chunk_is_computed_from_the_pieces_that_it_needs(case, seed):
    matrices, size, shard, chunk, most, samples = case
    packing = Packing(shard, chunk, Factored(matrices, most), np.float64)
    gradient, factors = factored_gradient(matrices, size, samples, seed)
    own, data = gradient[slice(*shard)].copy(), np.full(packing.nbytes, 255, np.uint8)
    lowest = packing.nbytes
    for number in reversed(range(len(packing.parts))):
        part = packing.parts[number]
        if part.matrix is None:
            packing.pack(number, own, Factors(samples), data)
        else:
            # Its elements are not looked at.
            values = np.where(np.arange(own.size) < part.range.stop, np.nan, own)
            packing.pack(number, values, factors[part.matrix.start + shard.start], data)
        assert 0 <= packing.places(samples)[number] < lowest
        lowest = packing.places(samples)[number]
    arrived, computed = np.full(packing.nbytes, 255, np.uint8), 0
    ready = packing.ready(samples)
    assert ready[0] == 0
    assert ready[-1] == packing.chunks
    for here in range(1, packing.chunks + 1):
        start = (packing.chunks - here) * packing.piece
        arrived[start : start + packing.piece] = data[start : start + packing.piece]
        while computed < ready[here]:
            computed += 1
            first = (packing.chunks - computed) * chunk
            values = np.full(min(chunk, own.size - first), np.nan)
            packing.unpack(packing.chunks - computed, samples, arrived, values)
            assert np.array_equal(values, own[first : first + values.size])


@settings(max_examples=100, deadline=None)
@given(cases())
def test_only_what_is_fewer_numbers_travels_as_factors(case):
    matrices, size, part_of_it, chunk, most, samples = case
    for shard in (part_of_it, Range(0, size)):
        packing = Packing(shard, chunk, Factored(matrices, most), np.float64)
        ends = [part.range.stop for part in packing.parts]
        assert [0, *ends] == [*(part.range.start for part in packing.parts), shard.size]
        for part in packing.parts:
            assert part.elements(samples) <= part.range.size
    factored = [part.matrix for part in packing.parts if part.matrix is not None]
    assert factored == [each for each in matrices if most * (each.rows + each.columns) < each.rows * each.columns]
