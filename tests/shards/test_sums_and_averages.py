"""Sums that a shard takes for one push, its moving average, and histograms of staleness."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Adagrad, Nesterov, Sgd
from mpidl.rules.segments import Segment
from mpidl.shards.policies import AccumulateGradients, AddChange, ApplyAtOnce, Assign, DelayedNesterov
from mpidl.shards.scheduled_rule import AVERAGE, Average, ScheduledRule
from mpidl.shards.shard import Shard, Snapshot
from mpidl.shards.staleness import BINS, Histogram

SIZE, CHUNK = 1003, 64


def make(dtype):
    rule = ScheduledRule(Adagrad(0.1), lambda batch: 1 / (1 + batch))
    return Shard(Range(5, 5 + SIZE), np.ones(SIZE, dtype), rule, ApplyAtOnce(), CHUNK, clock=3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_sum_is_one_push_of_what_was_summed_in_order(dtype, mean, count):
    random = np.random.default_rng(1)
    parts = random.normal(size=(count, SIZE)).astype(dtype) * 10.0 ** random.integers(-6, 6, (count, 1)).astype(dtype)
    expected, shard, before = make(dtype), make(dtype), parts.copy()
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    if mean:
        total /= count
    expected.receive_push(0, expected.clock, total, (2, 4))
    shard.receive_sum(parts, [128.0] * count if mean else None, (2, 4))
    assert parts.tobytes() == before.tobytes()
    for name, vector in shard.vectors.items():
        assert vector.tobytes() == expected.vectors[name].tobytes()
    assert (shard.clock, shard.pushes) == (4, 1)
    assert shard.staleness.counts[0] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_count_as_their_weights_say(dtype):
    parts = np.random.default_rng(2).normal(size=(3, SIZE)).astype(dtype)
    expected, shard = make(dtype), make(dtype)
    expected.receive_push(0, expected.clock, np.average(parts, axis=0, weights=[3, 1, 7]).astype(dtype), (2, 4))
    shard.receive_sum(parts, [3.0, 1.0, 7.0], (2, 4))
    for name, vector in shard.vectors.items():
        np.testing.assert_allclose(vector, expected.vectors[name], rtol=1e-5, atol=1e-6)


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
        (AccumulateGradients(3), Sgd(0.5), 3),
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
    own = shard(AccumulateGradients(3), Sgd(0.5))
    own.receive_push(0, 0, np.ones(5))
    assert np.array_equal(own.vectors[AVERAGE], own.parameters)
    own.apply_rest()
    moved = own.parameters - np.arange(1.0, 6.0)
    assert moved.any()
    np.testing.assert_allclose(own.vectors[AVERAGE] - np.arange(1.0, 6.0), (1 - DECAY) * moved)
    own.pass_time(math.inf)
    np.testing.assert_allclose(own.vectors[AVERAGE] - np.arange(1.0, 6.0), (1 - DECAY) * moved)


def of(values):
    found = Histogram()
    for value in values:
        found.add(value)
    return found


@pytest.mark.parametrize("values", [[0], [3, 1, 2, 2], [*range(200)], [7] * 99 + [9], [7] * 98 + [9, 9]])
def test_statistics_are_those_of_the_values(values):
    ordered = np.sort(values)
    p50, p99 = (int(ordered[-(-percent * len(values) // 100) - 1]) for percent in (50, 99))
    expected = {"mean": np.mean(values), "p50": p50, "p99": p99, "max": max(values)}
    assert of(values).statistics() == expected


def test_values_beyond_the_bins_have_an_exact_mean_and_the_maximum_as_percentiles():
    found = of([1] * 50 + [BINS - 2] * 10 + [BINS + 5] * 39 + [BINS + 900])
    assert found.statistics() == {
        "mean": (50 + 10 * (BINS - 2) + 39 * (BINS + 5) + BINS + 900) / 100, "p50": 1, "p99": BINS + 900,
        "max": BINS + 900,
    }  # fmt: skip


def test_a_total_has_the_values_of_all_in_any_order():
    for parts in ([[9], [2, 4]], [[2, 4], [9]]):
        assert Histogram.total(map(of, parts)).statistics() == of([2, 4, 9]).statistics()
