from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range, boxes


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
        assert len(box) == len(shape)
        assert covered.start == position
        assert array[box].ravel().tolist() == list(range(*covered.shift(start)))
        position = covered.stop
    assert position == stop - start


def test_whole_arrays_are_one_box():
    assert boxes((3, 5, 7), 0, 105) == [((slice(0, 3), slice(0, 5), slice(0, 7)), Range(0, 105))]
    assert boxes((), 0, 1) == [((), Range(0, 1))]
    assert boxes((3, 5), 4, 4) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 16), (4, 3)])
def test_a_stretch_outside_the_array_is_refused(start, stop):
    with pytest.raises(ValueError, match="aren't within"):
        boxes((3, 5), start, stop)
