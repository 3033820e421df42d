"""Ranges of vectors, and boxes of arrays."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.parameters import Box, Range, boxes, chunks, merged, shards, split, strides

ranges = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: Range(min(pair), max(pair)))


@given(ranges, ranges, st.integers(-60, 60))
def test_intersect_and_shift_act_on_the_elements(one, other, by):
    common = set(range(*one)) & set(range(*other))
    found = one.intersect(other)
    assert (found is None) == (not common)
    assert found is None or set(range(*found)) == common
    assert one.shift(by) == (one.start + by, one.stop + by)
    assert one.size == len(range(*one)) == one.shift(by).size


@given(st.integers(0, 1000), st.integers(1, 60))
def test_split_is_whole_ordered_and_balanced(size, parts):
    cut = split(size, parts)
    assert [element for part in cut for element in range(*part)] == list(range(size))
    sizes = [part.size for part in cut]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(ranges, st.integers(1, 60))
def test_chunks_are_whole_ordered_and_full_but_the_last(whole, chunk):
    cut = chunks(whole, chunk)
    assert [element for part in cut for element in range(*part)] == list(range(*whole))
    assert all(part.size == chunk for part in cut[:-1])
    assert all(0 < part.size <= chunk for part in cut)


@pytest.mark.parametrize("call", [lambda: split(3, 0), lambda: split(-1, 2), lambda: chunks(Range(0, 3), 0)])
def test_what_cannot_be_cut(call):
    with pytest.raises(ValueError, match="elements"):
        call()


def test_shards_are_balanced_whatever_the_layers():
    assert shards(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert shards(7, 7) == [(element, element + 1) for element in range(7)]


def test_more_servers_than_parameters_is_one_line():
    with pytest.raises(UsageError) as error:
        shards(7, 8)
    assert str(error.value) == "topology.servers: 8 for 7 parameters, expected at most 7"


@given(size=st.integers(1, 5000), servers=st.integers(1, 9), block=st.integers(1, 1024))
def test_shards_begin_at_multiples_of_a_block(size, servers, block):
    blocks = -(-size // block)
    if servers > blocks:
        with pytest.raises(UsageError, match=f"expected at most {blocks}"):
            shards(size, servers, block)
        return
    parts = shards(size, servers, block)
    assert parts[0].start == 0
    assert parts[-1].stop == size
    assert all(before.stop == after.start for before, after in itertools.pairwise(parts))
    assert all(part.start % block == 0 for part in parts)
    assert max(part.size for part in parts) - min(part.size for part in parts[:-1] or parts) <= block


@given(st.data())
def test_boxes_are_the_stretch_in_order(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
    size = prod(shape)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    array = np.arange(size).reshape(shape)
    cut = boxes(shape, start, stop)
    assert len(cut) <= max(1, 2 * len(shape) - 1)
    position = 0
    for box, covered in cut:
        assert len(box.shape) == len(shape)
        assert covered.start == position
        assert array[box.slices(Box.whole(shape))].ravel().tolist() == list(range(*covered.shift(start)))
        position = covered.stop
    assert position == stop - start


def test_whole_arrays_are_one_box():
    assert boxes((3, 5, 7), 0, 105) == [(Box.whole((3, 5, 7)), Range(0, 105))]
    assert boxes((), 0, 1) == [(Box(()), Range(0, 1))]
    assert boxes((3, 5), 4, 4) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 16), (4, 3)])
def test_a_stretch_outside_the_array_is_refused(start, stop):
    with pytest.raises(ValueError, match="aren't within"):
        boxes((3, 5), start, stop)


def boxes_within(shape):
    """Boxes of an array."""
    pairs = [st.tuples(st.integers(0, extent), st.integers(0, extent)).map(sorted) for extent in shape]
    return st.tuples(*pairs).map(lambda found: Box(tuple(Range(*each) for each in found)))


@given(st.data())
def test_what_two_boxes_have_in_common(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    whole = Box.whole(shape)
    first, second = data.draw(boxes_within(shape)), data.draw(boxes_within(shape))
    array = np.arange(whole.size).reshape(shape)
    expected = set(array[first.slices(whole)].ravel()) & set(array[second.slices(whole)].ravel())
    common = first.intersect(second)
    assert (0 if common is None else common.size) == len(expected)
    if common is not None:
        assert set(array[first.slices(whole)][common.slices(first)].ravel()) == expected


@given(st.data())
def test_a_box_of_a_part_is_one_of_the_whole(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    outer = data.draw(boxes_within(shape))
    inner = data.draw(boxes_within(outer.shape))
    array = np.arange(prod(shape)).reshape(shape)
    part = array[outer.slices(Box.whole(shape))]
    placed = inner.placed(outer)
    if placed.size:
        assert array[placed.slices(Box.whole(shape))].flat[0] == array.flat[placed.offset(Box.whole(shape))]
        assert placed.offset(outer) == inner.offset(Box.whole(outer.shape))
    assert placed.slices(outer) == inner.slices(Box.whole(outer.shape))
    np.testing.assert_array_equal(array[placed.slices(Box.whole(shape))], part[inner.slices(Box.whole(outer.shape))])


@given(st.data())
def test_merged_axes_visit_the_same_elements(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    box = data.draw(boxes_within(shape).filter(lambda box: box.size))
    array = np.arange(prod(shape)).reshape(shape)
    assert strides(shape) == tuple(each // array.itemsize for each in array.strides)
    part = array[box.slices(Box.whole(shape))]
    axes = merged(box.shape, strides(shape))
    assert axes[-1][1] == 1
    places = part.flat[0] + sum(
        np.arange(extent).reshape(-1, *[1] * number) * stride for number, (extent, stride) in enumerate(axes[::-1])
    )
    assert places.ravel().tolist() == part.ravel().tolist()
    if box == Box.whole(shape):
        assert len(axes) == 1


@st.composite
def boxes_in(draw, shape):
    bounds = [sorted(draw(st.tuples(*[st.integers(0, extent)] * 2))) for extent in shape]
    return Box(tuple(Range(*each) for each in bounds))


@given(st.lists(st.integers(1, 5), max_size=3), st.data())
def test_a_box_minus_another_has_each_of_its_other_elements_once(shape, data):
    one, other = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    counts = np.zeros(shape, int)
    for box in one.minus(other):
        counts[(*box.slices(Box.whole(shape)), ...)] += 1
    expected = np.zeros(shape, int)
    expected[(*one.slices(Box.whole(shape)), ...)] = 1
    if other.size:
        expected[(*other.slices(Box.whole(shape)), ...)] = 0
    assert np.array_equal(counts, expected)
