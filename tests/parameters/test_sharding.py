"""Who holds which shard and fragment of the vector, and of its slices."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.parameters import Box, Layout, Range, fragments, held_by_replicas, held_by_servers, shards, split


def slices_of(sizes):
    stops = np.cumsum([0, *sizes]).tolist()
    return [Range(*pair) for pair in pairwise(stops)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 6), st.sampled_from([1, 4]))
def test_servers_hold_a_shard_of_each_slice_that_they_have_a_part_of(sizes, servers, block):
    slices, blocks = slices_of(sizes), sum(-(-size // block) for size in sizes)
    if servers > blocks:
        with pytest.raises(UsageError, match=r"^topology.servers: "):
            held_by_servers(slices, servers, block)
        return
    held = held_by_servers(slices, servers, block)
    assert [each.range.start for each in held] == [0, *(each.range.stop for each in held[:-1])]
    assert held[-1].range.stop == sum(sizes)
    for range, _, partition in held:
        own = slices[partition]
        assert range.size
        assert own.intersect(range) == range
        assert (range.start - own.start) % block == 0
    assert len({(each.holder, each.partition) for each in held}) == len(held)
    loads = [
        sum(-(-each.range.size // block) for each in held if each.holder == server) for server in range_of(servers)
    ]
    assert max(loads) - min(loads) <= 1
    assert min(loads) > 0


def range_of(count):
    return list(range(count))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 6))
def test_replicas_divide_each_slice_among_themselves(sizes, replicas):
    slices = slices_of(sizes)
    if min(sizes) < replicas:
        with pytest.raises(UsageError, match=rf"^topology.partitions: {len(sizes)}, but partition "):
            held_by_replicas(slices, replicas)
        return
    for partition, own in enumerate(slices):
        of_slice = [each for each in held_by_replicas(slices, replicas) if each.partition == partition]
        assert [each.range for each in of_slice] == [part.shift(own.start) for part in split(own.size, replicas)]
        assert [each.holder for each in of_slice] == range_of(replicas)


@given(st.integers(1, 30), st.integers(1, 6), st.sampled_from([1, 4]))
def test_for_replicas_of_one_rank_each_server_has_one_shard(size, servers, block):
    if servers <= -(-size // block):
        held = held_by_servers([Range(0, size)], servers, block)
        assert [each.range for each in held] == shards(size, servers, block)
        assert [(each.holder, each.partition) for each in held] == [(number, 0) for number in range(servers)]


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
