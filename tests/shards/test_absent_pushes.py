"""A push that isn't of a shard changes nothing of it, but is complete with its first chunk."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range, shards
from mpidl.rules import Adam
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import ABSENT, Shard, outside


def test_an_absent_push_changes_nothing():
    shard = Shard(Range(3, 14), np.arange(11.0), ScheduledRule(Adam(0.1)), ApplyAtOnce(), 4)
    shard.receive_push(0, 0, np.ones(11))
    before = {name: np.copy(values) for name, values in shard.state().items()}
    completed = [shard.receive_chunk(1, chunk, ABSENT, np.ones(0)) for chunk in (2, 1, 0)]
    assert completed == [False, False, True]
    assert (shard.clock, shard.pushes, shard.open) == (1, 1, {})
    for name, values in shard.state().items():
        assert np.array_equal(values, before[name]), name


@given(st.integers(1, 60), st.data())
def test_shards_are_outside_of_parts_that_they_have_nothing_of(size, data):
    own = shards(size, data.draw(st.integers(1, size)))
    assert outside((), own) == []
    ends = sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True)))
    part = Range(*ends)
    expected = [number for number, each in enumerate(own) if each.stop <= part.start or part.stop <= each.start]
    assert outside([part], own) == expected
    rest = [Range(0, part.start), Range(part.stop, size)]
    inside_of_rest = [each for each in rest if each.size]
    if inside_of_rest:
        covered = {number for number, each in enumerate(own) if part.start <= each.start and each.stop <= part.stop}
        assert set(outside(inside_of_rest, own)) == covered
