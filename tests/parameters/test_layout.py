"""Layouts of the vector, and moves from one to another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cut_layouts import cut_layouts, in_layout, shapes_by_name, tensors_of
from mpidl.parameters import Box, Layout, Range, moves, shards

SHAPES = [("0-dense/weight", (5, 3)), ("0-dense/bias", (3,)), ("scale", ()), ("none", (0, 4)), ("last", (1, 7, 3))]


def test_slices_follow_each_other():
    layout = Layout(SHAPES)
    assert layout.size == 15 + 3 + 1 + 0 + 21
    assert [(part.name, part.shape, part.start, part.stop) for part in layout] == [
        ("0-dense/weight", (5, 3), 0, 15),
        ("0-dense/bias", (3,), 15, 18),
        ("scale", (), 18, 19),
        ("none", (0, 4), 19, 19),
        ("last", (1, 7, 3), 19, 40),
    ]
    assert layout["scale"].range == Range(18, 19)
    assert layout["last"].size == 21
    assert len(layout) == len(layout.slices) == 5


def test_views_are_the_vector():
    layout = Layout(SHAPES)
    vector = np.arange(layout.size, dtype=np.float32)
    views = layout.views(vector)
    assert {name: view.shape for name, view in views.items()} == dict(SHAPES)
    for name, view in views.items():
        view[...] = -1 - list(views).index(name)
    assert vector.tolist() == [-1] * 15 + [-2] * 3 + [-3] + [-5] * 21


@pytest.mark.parametrize("shape", [(39,), (41,), (40, 1)])
def test_views_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected \(40,\)"):
        Layout(SHAPES).views(np.zeros(shape))


def test_equality_is_by_name_shape_and_order():
    assert Layout(SHAPES) == Layout(list(SHAPES))
    assert hash(Layout(SHAPES)) == hash(Layout(list(SHAPES)))
    assert Layout(SHAPES) != Layout(SHAPES[::-1])
    assert Layout([("a", (2, 3))]) != Layout([("a", (3, 2))])
    assert Layout([]) != 0
    assert repr(Layout([("a", (2, 3))])) == "Layout([('a', (2, 3))])"


@pytest.mark.parametrize("shapes", [[("a", (2,)), ("a", (3,))], [("a", (2, -1))]])
def test_impossible_layouts_are_refused(shapes):
    with pytest.raises(ValueError, match="'a'"):
        Layout(shapes)


def test_a_layout_of_pieces():
    left, right = Box((Range(0, 5), Range(0, 1))), Box((Range(0, 5), Range(1, 3)))
    layout = Layout(
        SHAPES[:2], [("0-dense/weight", right), ("0-dense/bias", Box.whole((3,))), ("0-dense/weight", left)]
    )
    assert layout.shapes == dict(SHAPES[:2])
    assert [(part.name, part.shape, part.start) for part in layout] == [
        ("0-dense/weight", (5, 2), 0),
        ("0-dense/bias", (3,), 10),
        ("0-dense/weight", (5, 1), 13),
    ]
    assert layout.size == 18
    assert [part.box for part in layout.of("0-dense/weight")] == [right, left]
    assert layout != Layout(SHAPES[:2])


@pytest.mark.parametrize("boxes", [[], [(0, 2)], [(0, 3), (2, 5)], [(0, 3), (3, 6)], [(0, 5), (0, 5)]])
def test_pieces_that_are_not_the_tensor_are_refused(boxes):
    with pytest.raises(ValueError, match="'a' of shape"):
        Layout([("a", (5,))], [("a", Box((Range(*each),))) for each in boxes])


def any_box(shape):
    """Boxes around the elements of an array, most of them within it."""
    ends = (st.tuples(st.integers(0, extent), st.integers(0, extent + 1)).map(sorted) for extent in shape)
    return st.tuples(*ends).map(lambda found: Box(tuple(Range(*each) for each in found)))


@given(st.data())
def test_pieces_are_accepted_if_they_have_each_element_once(data):
    shape = data.draw(st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple))
    cut = data.draw(cut_layouts({"a": shape}))
    pieces = [part.box for part in cut]
    if data.draw(st.booleans()):
        pieces[data.draw(st.integers(0, len(pieces) - 1))] = data.draw(any_box(shape))
    if data.draw(st.booleans()):
        pieces.append(data.draw(any_box(shape)))
    counts, outside = np.zeros(shape, int), False
    for box in pieces:
        counts[box.slices(Box.whole(shape))] += 1
        outside |= box.size > 0 and box.intersect(Box.whole(shape)) != box
    if outside or (counts != 1).any():
        with pytest.raises(ValueError, match="the pieces don't have each element once"):
            Layout([("a", shape)], [("a", box) for box in pieces])
    else:
        assert Layout([("a", shape)], [("a", box) for box in pieces]).size == counts.size


@given(st.data())
def test_a_range_is_boxes_of_tensors_in_its_order(data):
    shapes = dict(SHAPES)
    layout = data.draw(cut_layouts(shapes))
    tensors = tensors_of(shapes)
    vector = in_layout(tensors, layout)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, layout.size)] * 2)))
    position = start
    for place in layout.within(Range(start, stop)):
        assert place.start == position
        found = tensors[place.name][place.box.slices(Box.whole(shapes[place.name]))]
        assert found.ravel().tolist() == vector[place.start : place.stop].tolist()
        position = place.stop
    assert position == stop
    assert layout.uncut == Layout(SHAPES)


@given(st.data())
def test_any_layout_to_any_other(data):
    shapes = data.draw(shapes_by_name)
    old, new = (data.draw(cut_layouts(shapes)) for _ in range(2))
    tensors = tensors_of(shapes)
    source, target = (in_layout(tensors, layout) for layout in (old, new))
    held = shards(old.size, data.draw(st.integers(1, min(old.size, 5))))
    for wanted in shards(new.size, data.draw(st.integers(1, min(new.size, 5)))):
        assembled = np.full(wanted.size, -1.0)
        count = 0
        for shard in held:
            for move in moves(old, shard, new, wanted):
                move.copy(source[slice(*shard)], assembled)
                count += move.box.size
        assert count == wanted.size
        assert assembled.tolist() == target[slice(*wanted)].tolist()
