"""Random distributions of arrays over ranks, and what a transfer does to them, computed element by element."""

import numpy as np
from hypothesis import strategies as st

from mpidl.parameters import Box, Range


@st.composite
def boxes_of(draw, shape):
    bounds = [sorted(draw(st.tuples(*[st.integers(0, extent)] * 2))) for extent in shape]
    return Box(tuple(Range(*each) for each in bounds))


@st.composite
def held(draw, shape):
    """Draw what a rank has: nothing, a box, or the rest of a box from which another is taken."""
    found = draw(st.none() | boxes_of(shape))
    if found is None or draw(st.booleans()):
        return found
    return tuple(found.minus(draw(boxes_of(shape))))


@st.composite
def pairs(draw):
    """Draw a shape and two distributions over some ranks."""
    shape = draw(st.lists(st.integers(1, 5), min_size=0, max_size=3))
    ranks = draw(st.integers(1, 5))
    return shape, *([draw(held(shape)) for _ in range(ranks)] for _ in range(2))


def arrays(transfer_side, seed):
    """Return whole numbers for each box of each rank."""
    random = np.random.default_rng(seed)
    return [[random.integers(-9, 9, box.shape).astype(float) for box in boxes] for boxes in transfer_side]


def spread(shape, boxes, values):
    """Return an array of the whole shape with a rank's values, 0 elsewhere."""
    whole = np.zeros(shape)
    for box, each in zip(boxes, values, strict=True):
        whole[(*box.slices(Box.whole(shape)), ...)] = each
    return whole


def moved(shape, transfer, values):
    """Return what a transfer makes of the sources' values, by its definition."""
    total = sum(spread(shape, boxes, each) for boxes, each in zip(transfer.source, values, strict=True))
    return [[total[(*box.slices(Box.whole(shape)), ...)] for box in boxes] for boxes in transfer.target]


def product(ones, others):
    return sum(
        float(np.vdot(a, b)) for one, other in zip(ones, others, strict=True) for a, b in zip(one, other, strict=True)
    )
