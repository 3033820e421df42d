from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Box, Range, split
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
