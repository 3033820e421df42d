"""The parts that a rank has of values, and what rests there."""

from distributions import boxes_of
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Box, Range, split
from mpidl.partition.local import Movement, rests
from mpidl.partition.plan import TensorPart


@given(st.integers(1, 40), st.integers(1, 7))
def test_shares_of_the_samples_are_the_batch(samples, count):
    box = Box.whole((3, 2))
    parts = [TensorPart(box, (number, count)).of(samples) for number in range(count)]
    found = [sample for part in parts if part is not None for sample in range(*part.ranges[0])]
    assert found == list(range(samples))
    assert [TensorPart(box, (number, count)).samples(samples) for number in range(count)] == split(samples, count)
    assert all(part.ranges[1:] == box.ranges for part in parts if part is not None)


def test_a_part_of_all_samples():
    assert TensorPart(Box((Range(2, 5),))).of(7) == Box((Range(0, 7), Range(2, 5)))
    assert TensorPart(Box((Range(2, 2),))).of(7) is None


SHARES = [None, (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]


@st.composite
def distributions(draw, ranks):
    part = st.builds(TensorPart, boxes_of((4,)), st.sampled_from(SHARES))
    return tuple(draw(st.none() | part) for _ in range(ranks))


@given(st.data())
def test_who_rests_has_what_it_is_to_have_for_any_batch(data):
    source = data.draw(distributions(3))
    target = data.draw(st.just(source) | distributions(3))
    resting = [rests(source, target, rank) for rank in range(3)]
    for samples in range(1, 13):
        transfer = Movement(source, target, 0, None, None).transfer(samples)
        for rank in range(3):
            assert transfer.rests(rank) or not resting[rank]


def test_parts_of_the_same_shares_do_not_meet_in_others():
    left, right = (Box((Range(*each),)) for each in ((0, 2), (2, 4)))
    tiles = tuple(TensorPart(box, (number, 2)) for number in (0, 1) for box in (left, right))
    assert all(rests(tiles, tiles, rank) for rank in range(4))
    twice = (TensorPart(left, (0, 2)), TensorPart(left, (0, 2)), TensorPart(left, (1, 2)))
    assert [rests(twice, twice, rank) for rank in range(3)] == [False, False, True]
