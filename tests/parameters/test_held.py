"""Who holds which shard, where each partition of a replica has a slice of the vector."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.parameters import Range, held_by_replicas, held_by_servers, shards, split


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
