"""The average of a shard moves once with each update, whatever changes the parameters, and on snapshots alike."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Nesterov, Sgd
from mpidl.rules.segments import Segment
from mpidl.shards.average import AVERAGE, Average
from mpidl.shards.policies import AddChange, ApplyAtOnce, Assign, DelayedNesterov, Gather
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard, Snapshot

DECAY = 0.75


def shard(policy, rule, chunk=2):
    first = np.arange(1.0, 6.0)
    scheduled = ScheduledRule(rule, segments=[Segment(Range(11, 12), frozen=True)])
    state = {**dict(zip(rule.states, rule.init(first), strict=True)), AVERAGE: first.copy()}
    return Shard(Range(10, 15), first.copy(), replace(scheduled, changed=Average(DECAY)), policy, chunk, state=state)


@pytest.mark.parametrize(
    ("policy", "rule", "every"),
    [
        (ApplyAtOnce(), Sgd(0.5), 1),
        (AddChange(), Sgd(0.5), 1),
        (Assign(), Sgd(0.5), 1),
        (Gather(3), Sgd(0.5), 3),
        (DelayedNesterov(2), Nesterov(0.1), 1),
    ],
)
def test_one_step_for_each_update(policy, rule, every):
    own, random = shard(policy, rule), np.random.default_rng(0)
    expected, before = own.parameters.copy(), own.parameters.copy()
    snapshot = Snapshot(own)
    for push in range(1, 7):
        own.receive_push(0, own.clock, random.normal(size=5))
        assert np.array_equal(own.parameters, before) == (push % every > 0)
        if push % every == 0:
            expected += (1 - DECAY) * (own.parameters - expected)
        before = own.parameters.copy()
        np.testing.assert_allclose(own.vectors[AVERAGE], expected, rtol=1e-14)
    assert own.vectors[AVERAGE][1] == 2
    snapshot.begin([0])
    for chunk in (2, 1, 0):
        push = 0, chunk, own.clock, np.ones(own.chunk(chunk).size), (0, 0)
        own.receive_chunk(*push)
        snapshot.receive_chunk(*push)
    assert np.array_equal(snapshot.copy.vectors[AVERAGE], own.vectors[AVERAGE])


def test_what_is_left_at_the_end_is_an_update():
    own = shard(Gather(3), Sgd(0.5))
    own.receive_push(0, 0, np.ones(5))
    assert np.array_equal(own.vectors[AVERAGE], own.parameters)
    own.apply_rest()
    moved = own.parameters - np.arange(1.0, 6.0)
    assert moved.any()
    np.testing.assert_allclose(own.vectors[AVERAGE] - np.arange(1.0, 6.0), (1 - DECAY) * moved)
    own.pass_time(math.inf)
    np.testing.assert_allclose(own.vectors[AVERAGE] - np.arange(1.0, 6.0), (1 - DECAY) * moved)
