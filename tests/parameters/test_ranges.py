import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.parameters import Range, chunks, shards, split

ranges = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: Range(min(pair), max(pair)))


@given(ranges, ranges, st.integers(-60, 60))
def test_intersect_and_shift_act_on_the_elements(one, other, by):
    common = set(range(*one)) & set(range(*other))
    found = one.intersect(other)
    assert (found is None) == (not common)
    assert found is None or set(range(*found)) == common
    assert one.shift(by) == (one.start + by, one.stop + by)
    assert one.size == len(range(*one)) == one.shift(by).size


@given(st.integers(0, 1000), st.integers(1, 60))
def test_split_is_whole_ordered_and_balanced(size, parts):
    cut = split(size, parts)
    assert [element for part in cut for element in range(*part)] == list(range(size))
    sizes = [part.size for part in cut]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(ranges, st.integers(1, 60))
def test_chunks_are_whole_ordered_and_full_but_the_last(whole, chunk):
    cut = chunks(whole, chunk)
    assert [element for part in cut for element in range(*part)] == list(range(*whole))
    assert all(part.size == chunk for part in cut[:-1])
    assert all(0 < part.size <= chunk for part in cut)


@pytest.mark.parametrize("call", [lambda: split(3, 0), lambda: split(-1, 2), lambda: chunks(Range(0, 3), 0)])
def test_what_cannot_be_cut(call):
    with pytest.raises(ValueError, match="elements"):
        call()


def test_shards_are_balanced_whatever_the_layers():
    assert shards(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert shards(7, 7) == [(element, element + 1) for element in range(7)]


def test_more_servers_than_parameters_is_one_line():
    with pytest.raises(UsageError) as error:
        shards(7, 8)
    assert str(error.value) == "topology.servers: 8 for 7 parameters, expected at most 7"


@given(size=st.integers(1, 5000), servers=st.integers(1, 9), block=st.integers(1, 1024))
def test_shards_begin_at_multiples_of_a_block(size, servers, block):
    blocks = -(-size // block)
    if servers > blocks:
        with pytest.raises(UsageError, match=f"expected at most {blocks}"):
            shards(size, servers, block)
        return
    parts = shards(size, servers, block)
    assert parts[0].start == 0
    assert parts[-1].stop == size
    assert all(before.stop == after.start for before, after in itertools.pairwise(parts))
    assert all(part.start % block == 0 for part in parts)
    assert max(part.size for part in parts) - min(part.size for part in parts[:-1] or parts) <= block
