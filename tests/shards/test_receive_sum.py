"""Sums of vectors that a shard takes for one push."""

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Adagrad
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

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
