"""Layouts of pieces, for property tests, and vectors in them."""

from math import prod

import numpy as np
from hypothesis import strategies as st

from mpidl.parameters import Box, Layout, Range


@st.composite
def cut_layouts(draw, shapes, most=4):
    """Layouts of tensors of these shapes, each cut at random into a few pieces, the pieces in any order."""
    pieces = []
    for name, shape in shapes.items():
        boxes = [Box.whole(shape)]
        for _ in range(draw(st.integers(0, most))):
            box = draw(st.sampled_from(boxes))
            axes = [axis for axis, extent in enumerate(box.shape) if extent > 1]
            if axes:
                boxes.remove(box)
                boxes += _halves(box, axis := draw(st.sampled_from(axes)), draw(st.integers(1, box.shape[axis] - 1)))
        pieces += [(name, box) for box in boxes]
    return Layout(shapes.items(), draw(st.permutations(pieces)))


def _halves(box, axis, at):
    start, stop = box.ranges[axis]
    parts = Range(start, start + at), Range(start + at, stop)
    return [Box((*box.ranges[:axis], part, *box.ranges[axis + 1 :])) for part in parts]


def in_layout(tensors, layout):
    """Return the flat vector of tensors, which are arrays by name."""
    vector = np.empty(layout.size, next(iter(tensors.values())).dtype)
    for part in layout:
        whole = Box.whole(layout.shapes[part.name])
        vector[part.start : part.stop] = tensors[part.name][part.box.slices(whole)].ravel()
    return vector


def tensors_of(shapes, dtype="float32", start=0):
    """Return tensors of which every element has another value."""
    found = {}
    for name, shape in shapes.items():
        size = prod(shape)
        found[name] = np.arange(start, start + size, dtype=dtype).reshape(shape)
        start += size
    return found


#: Shapes of tensors by name, a few with few elements.
shapes_by_name = st.lists(st.lists(st.integers(1, 7), max_size=4).map(tuple), min_size=1, max_size=3).map(
    lambda shapes: {f"{number}-layer/weight": shape for number, shape in enumerate(shapes)}
)
