"""What stale pushes change of statistics."""

import tracemalloc

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards.policies import AccumulateGradients, AddChange, ApplyAtOnce, Assign, FirstOfStep, drop_above
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

START, SIZE, RATE = 5, 23, 0.5
#: Within the flat vector; the shard has all of the second, and chunks of 8 cut it.
STATISTICS = [Range(2, 7), Range(10, 19), Range(25, 40)]
IN_SHARD = np.isin(np.arange(START, START + SIZE), np.concatenate([np.arange(*part) for part in STATISTICS]))


def make(policy, clock=7):
    rule = ScheduledRule(Sgd(RATE), statistics=STATISTICS)
    return Shard(Range(START, START + SIZE), np.zeros(SIZE), rule, policy, 8, clock=clock)


def push(staleness):
    values = np.random.default_rng(staleness).normal(size=SIZE)
    return values, values.copy()


@pytest.mark.parametrize("staleness", [0, 1, 6])
@pytest.mark.parametrize(
    ("policy", "sign"),
    [(ApplyAtOnce(), -1), (AddChange(), 1), (AccumulateGradients(1), -1), (drop_above(9, ApplyAtOnce()), -1)],
)
def test_a_stale_push_moves_statistics_less(policy, sign, staleness):
    shard, (values, before) = make(policy), push(staleness)
    shard.receive_push(0, shard.clock - staleness, values)
    rates = np.where(IN_SHARD, 1 / (staleness + 1), 1.0 if sign > 0 else RATE)
    np.testing.assert_allclose(shard.parameters, sign * rates * before, rtol=1e-14)
    assert np.array_equal(values, before)


def test_damping_takes_memory_for_chunks_and_not_for_the_shard():
    whole, values = Range(0, 400_000), np.ones(400_000)
    rule = ScheduledRule(Sgd(RATE), statistics=[whole])
    shard = Shard(whole, np.zeros(whole.size), rule, ApplyAtOnce(), 4_000, clock=7)
    tracemalloc.start()
    shard.receive_push(0, 4, values)
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.all(shard.parameters == -1 / 4)
    assert allocated < 6 * 8 * 4_000


def test_a_sparse_update_does_too():
    shard, (values, before) = make(ApplyAtOnce()), push(3)
    shard.update_sparsely(values, 1, 0, 3)
    np.testing.assert_allclose(shard.parameters, -np.where(IN_SHARD, 1 / 4, RATE) * before, rtol=1e-14)


def test_pushes_that_take_the_place_of_others_are_not_damped():
    shard, (values, _) = make(Assign()), push(3)
    shard.receive_push(0, shard.clock - 3, values)
    assert np.array_equal(shard.parameters, values)
    assert not FirstOfStep(2, 3).adds_up


def test_a_shard_may_be_empty():
    shard = Shard(Range(5, 5), np.zeros(0), ScheduledRule(Sgd(RATE), statistics=STATISTICS), ApplyAtOnce(), 8, clock=7)
    shard.receive_push(0, 4, np.zeros(0))
    assert (shard.chunks, shard.clock, shard.pushes) == (0, 7, 0)
