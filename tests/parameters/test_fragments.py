"""Fragments are consecutive, of whole layers where there are enough, and of about equal size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.parameters import Box, Layout, Range, fragments, held_by_replicas, split

#: 12 + 3, 6 + 2 and 2 elements.
LAYOUT = Layout([("0/weight", (4, 3)), ("0/bias", (3,)), ("1/weight", (3, 2)), ("1/bias", (2,)), ("2/scale", (2,))])


@pytest.mark.parametrize(
    ("count", "stops"),
    [(1, [25]), (2, [15, 25]), (3, [15, 23, 25]), (4, [12, 15, 21, 25]), (5, [12, 15, 21, 23, 25]), (6, None)],
)
def test_fragments_are_whole_layers_or_tensors_if_there_are_as_many(count, stops):
    found = fragments(LAYOUT, Range(0, LAYOUT.size), count)
    if stops is None:
        assert found == split(LAYOUT.size, count)
    else:
        assert [part.stop for part in found] == stops


def test_fragments_of_a_slice_count_from_its_beginning():
    pieces = [("0/weight", Box((Range(0, 2), Range(0, 3)))), ("1/weight", Box((Range(0, 4),)))]
    pieces += [("0/weight", Box((Range(2, 4), Range(0, 3)))), ("1/weight", Box((Range(4, 6),)))]
    layout = Layout([("0/weight", (4, 3)), ("1/weight", (6,))], pieces)
    assert fragments(layout, Range(10, 18), 2) == [Range(0, 6), Range(6, 8)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 12))
def test_fragments_are_the_whole_vector(sizes, count):
    layout = Layout([(f"{number}/weight", (size,)) for number, size in enumerate(sizes)])
    found = fragments(layout, Range(0, layout.size), count)
    assert len(found) == count
    assert [part.start for part in found] == [0, *(part.stop for part in found[:-1])]
    assert found[-1].stop == layout.size
    if count <= len(sizes):
        starts = {part.start for part in layout}
        assert all(part.start in starts and part.size for part in found)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_replicas_divide_each_fragment(replicas, count, slices):
    whole = [Range(start * 40, (start + 1) * 40) for start in range(slices)]
    held = held_by_replicas(whole, replicas, [split(40, count)] * slices)
    assert [each.range.start for each in held] == [0, *(each.range.stop for each in held[:-1])]
    assert held[-1].range.stop == 40 * slices
    assert [each.holder for each in held] == list(range(replicas)) * count * slices
    assert [each.partition for each in held] == [s for s in range(slices) for _ in range(replicas * count)]


def test_a_fragment_must_have_a_parameter_for_each_replica():
    with pytest.raises(UsageError) as error:
        held_by_replicas([Range(0, 25)], 3, [fragments(LAYOUT, Range(0, 25), 3)])
    assert str(error.value) == (
        "algorithm.fragments: 3, but fragment 2 has 2 parameters to divide among 3 replicas; "
        "expected fewer fragments or replicas"
    )
