"""Curves with fewer points look the same: peaks stay."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mpidl.page.course import kept, part_of

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@st.composite
def curves(draw):
    rows = draw(st.integers(0, 60))
    values = draw(arrays.arrays(float, rows, elements=NUMBERS))
    axis = arrays.arrays(float, rows, elements=st.floats(0, 1e6) | st.just(np.nan))
    return [draw(axis), np.arange(rows, dtype=float)], values, draw(st.integers(1, 12))


@given(curves())
def test_each_part_of_each_axis_keeps_its_extremes(curve):
    axes, values, parts = curve
    found = kept(axes, values, parts)
    assert np.array_equal(found, np.unique(found))
    assert np.isfinite(values[found]).all()
    finite = np.isfinite(values)
    for axis in axes:
        there = np.flatnonzero(finite & np.isfinite(axis))
        if not there.size:
            continue
        part = part_of(axis[there], parts)
        chosen = np.isin(there, found)
        for number in np.unique(part):
            every = values[there][part == number]
            some = values[there][(part == number) & chosen]
            assert (some.min(), some.max()) == (every.min(), every.max())


@given(curves())
def test_there_are_no_more_points_than_a_screen_shows(curve):
    axes, values, parts = curve
    found = kept(axes, values, parts)
    assert len(found) <= 2 + 2 * parts * len(axes)
    finite = np.flatnonzero(np.isfinite(values))
    if finite.size:
        assert {finite[0], finite[-1]} <= set(found)


def test_short_curves_keep_all_points():
    values = np.array([1.0, np.nan, 3.0, np.inf, 2.0])
    assert kept([np.arange(5.0)], values, 2).tolist() == [0, 2, 4]
