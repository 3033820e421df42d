import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import MpidlError
from mpidl.parameters import Range, shards, transfers


@given(st.data())
def test_any_number_of_servers_to_any_other(data):
    size = data.draw(st.integers(1, 200))
    old = shards(size, data.draw(st.integers(1, min(size, 9))))
    new = shards(size, data.draw(st.integers(1, min(size, 9))))
    old = data.draw(st.permutations(old))
    vector = np.arange(size)
    for shard in new:
        assembled = np.full(shard.size, -1)
        for source, source_range, target_range in transfers(old, shard):
            part = vector[slice(*old[source])][slice(*source_range)]
            assembled[slice(*target_range)] = part
        assert assembled.tolist() == list(range(*shard))


def test_copies_are_in_order_and_none_is_empty():
    found = transfers([Range(0, 4), Range(4, 7), Range(7, 7), Range(7, 10)], Range(4, 9))
    assert found == [(1, Range(0, 3), Range(0, 3)), (3, Range(0, 2), Range(3, 5))]
    assert transfers([Range(0, 4)], Range(2, 2)) == []


@pytest.mark.parametrize(
    ("old", "missing"),
    [
        ([], 2),
        ([Range(0, 4)], 4),
        ([Range(3, 9)], 2),
        ([Range(0, 4), Range(5, 9)], 4),
        ([Range(0, 5), Range(4, 9)], 5),
    ],
)
def test_old_shards_that_do_not_cover_the_new_one(old, missing):
    with pytest.raises(MpidlError, match=f"element {missing} exactly once"):
        transfers(old, Range(2, 9))
