import numpy as np
import pytest

from mpidl.parameters import Layout, Range

SHAPES = [
    ("0-dense/weight", (5, 3)),
    ("0-dense/bias", (3,)),
    ("scale", ()),
    ("none", (0, 4)),
    ("last", (1, 7, 3)),
]


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
