"""A part of the positions of sliding windows is sliding windows on a part of the image."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpidl.nn.sliding_windows import sliding_windows, under_windows
from mpidl.parameters import Range

sizes = st.integers(1, 6)


@st.composite
def axes(draw):
    """Draw an extent, the windows on it, and some of their positions."""
    size = draw(sizes)
    before, after = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    extent, stride = draw(st.integers(max(1, size - before - after), 20)), draw(sizes)
    start, stop = sorted(
        draw(st.lists(st.integers(0, (extent + before + after - size) // stride), min_size=2, max_size=2))
    )
    return extent, size, stride, [before, after], Range(start, stop + 1)


def windows_on(values, windows):
    """Return the values under each window along one axis, NaN beyond the image."""
    padded = np.pad(values, (windows.padding[0], windows.after[0]), constant_values=np.nan)
    starts = range(0, windows.positions[0] * windows.stride[0], windows.stride[0])
    return [padded[start : start + windows.size[0]] for start in starts]


@given(axes(), axes())
def test_the_same_windows(down, across):
    (height, *_), (width, *_) = down, across
    size, stride, padding, positions = ([down[place], across[place]] for place in (1, 2, 3, 4))
    whole = sliding_windows((height, width, 3), size, stride, padding)
    (rows, columns), around = under_windows(whole, (height, width, 3), tuple(positions))
    part = sliding_windows((rows.size, columns.size, 3), size, stride, around)
    assert part.positions == tuple(each.size for each in positions)
    values = np.arange(float(height))
    np.testing.assert_array_equal(
        windows_on(values[slice(*rows)], part), windows_on(values, whole)[slice(*positions[0])]
    )
