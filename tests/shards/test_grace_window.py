"""Steps with a grace window, chunk by chunk, by a clock that the tests turn."""

import math

import numpy as np

from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards.policies import AccumulateGradients, ApplyAtOnce, FirstOfStep, drop_above
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard


def make(policy):
    return Shard(Range(5, 18), np.arange(13) - 4.0, ScheduledRule(Sgd(1.0)), policy, 4)


def give(shard, worker, chunks, fetched=0):
    """Let a worker send some chunks of a push whose values are 1 + its number."""
    for chunk in chunks:
        shard.receive_chunk(worker, chunk, fetched, np.full(shard.pieces[chunk].size, 1.0 + worker))


def whole(shard):
    return reversed(range(shard.chunks))


def test_a_step_with_a_grace_window_takes_who_comes_before_its_end():
    shard = make(FirstOfStep(2, 4, 1.5))
    before = shard.parameters.copy()
    give(shard, 3, whole(shard))
    assert shard.pass_time(10.0) == math.inf
    give(shard, 1, whole(shard))
    assert shard.pass_time(20.0) == 21.5
    give(shard, 0, whole(shard))
    assert shard.pass_time(21.0) == 21.5
    assert shard.clock == 0
    assert shard.pass_time(21.5) == math.inf
    assert np.array_equal(shard.parameters, before - (4 + 2 + 1) / 3)
    give(shard, 2, whole(shard))
    assert (shard.clock, shard.pushes, shard.dropped) == (1, 4, 1)
    # The next step has a window of its own.
    give(shard, 0, whole(shard), 1)
    give(shard, 1, whole(shard), 1)
    assert shard.pass_time(30.0) == 31.5


def test_a_step_ends_before_its_window_when_all_have_given():
    shard = make(FirstOfStep(1, 2, 100.0))
    before = shard.parameters.copy()
    give(shard, 1, whole(shard))
    assert shard.pass_time(1.0) == 101.0
    give(shard, 0, whole(shard))
    assert shard.clock == 1
    assert np.array_equal(shard.parameters, before - 1.5)
    # What the window would have ended is over.
    assert shard.pass_time(101.0) == math.inf
    give(shard, 1, whole(shard), 1)
    assert shard.pass_time(102.0) == 202.0


def test_a_push_that_begins_within_the_window_counts_as_a_whole_and_a_later_one_not_at_all():
    shard = make(FirstOfStep(2, 4, 1.0))
    before, (first, *rest) = shard.parameters.copy(), whole(shard)
    give(shard, 0, whole(shard))
    give(shard, 1, whole(shard))
    assert shard.pass_time(5.0) == 6.0
    give(shard, 2, [first])
    assert shard.pass_time(6.0) == math.inf
    give(shard, 3, whole(shard))
    assert shard.pass_time(7.0) == math.inf
    assert np.array_equal(shard.parameters, before)
    assert shard.dropped == 1
    give(shard, 2, rest)
    shard.pass_time(8.0)
    assert np.array_equal(shard.parameters, before - 2)
    assert (shard.clock, shard.pushes, shard.dropped) == (1, 4, 1)


def test_the_window_begins_when_the_quorum_has_arrived_whole():
    shard = make(FirstOfStep(2, 3, 1.0))
    first, *rest = whole(shard)
    give(shard, 0, whole(shard))
    give(shard, 1, [first])
    assert shard.pass_time(5.0) == math.inf
    give(shard, 1, rest)
    assert shard.pass_time(7.0) == 8.0


def test_who_leaves_within_the_window_is_waited_for_no_longer():
    shard = make(FirstOfStep(2, 3, 100.0))
    before = shard.parameters.copy()
    give(shard, 0, whole(shard))
    give(shard, 1, whole(shard))
    assert shard.pass_time(1.0) == 101.0
    shard.remove_worker(2)
    assert np.array_equal(shard.parameters, before - 1.5)
    shard.remove_worker(0)
    give(shard, 1, whole(shard), 1)
    # Fewer than the quorum are left.
    assert shard.clock == 2


def test_a_resumed_step_begins_its_window_anew():
    shard, resumed = (make(FirstOfStep(1, 2, 1.0)) for _ in range(2))
    give(shard, 0, whole(shard))
    assert shard.pass_time(1.0) == 2.0
    resumed.load(shard.state())
    assert resumed.pass_time(70.0) == 71.0
    resumed.pass_time(71.0)
    assert resumed.clock == 1


def test_without_a_window_time_changes_nothing():
    shard = make(drop_above(5, FirstOfStep(2, 3)))
    give(shard, 0, whole(shard))
    assert shard.pass_time(math.inf) == math.inf
    assert shard.clock == 0
    for policy in (ApplyAtOnce(), AccumulateGradients(2)):
        assert make(policy).pass_time(1.0) == math.inf


def test_a_step_resumed_in_the_middle_of_a_push_stays_closed_to_others():
    shard, resumed = (make(FirstOfStep(1, 3, 1.0)) for _ in range(2))
    first, *rest = whole(shard)
    before = shard.parameters.copy()
    give(shard, 0, whole(shard))
    shard.pass_time(5.0)
    give(shard, 1, [first])
    shard.pass_time(6.0)
    resumed.load(shard.state())
    give(resumed, 2, whole(resumed))
    assert resumed.dropped == 1
    give(resumed, 1, rest)
    resumed.pass_time(math.inf)
    assert np.array_equal(resumed.parameters, before - 1.5)
