"""What a shard does with a push, chunk by chunk, against each policy's formula."""

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.policies import Adag, Add, ApplyAtOnce, DelayCompensated, DropStale, Gather, inverse, inverse_plus_one
from mpidl.rules import Adagrad, Sgd
from mpidl.shard import Shard

SIZE, CHUNK = 13, 4


def make(policy, rule=None):
    return Shard(Range(5, 5 + SIZE), np.arange(SIZE) - 4.0, rule or Sgd(0.5), policy, CHUNK)


def push(shard, values, worker=0, fetched=None):
    fetched = shard.clock if fetched is None else fetched
    for number in range(shard.chunks):
        shard.receive(worker, number, fetched, values[number * CHUNK : (number + 1) * CHUNK])


def gradient(seed=0):
    return np.random.default_rng(seed).normal(size=SIZE)


def test_apply_at_once_scales_the_rate_by_staleness():
    shard = make(ApplyAtOnce(inverse))
    expected = shard.parameters.copy()
    for staleness, weight in [(0, 1), (1, 1), (2, 1 / 2), (0, 1), (4, 1 / 4)]:
        push(shard, gradient(staleness), fetched=shard.clock - staleness)
        expected -= 0.5 * weight * gradient(staleness)
    assert shard.parameters == pytest.approx(expected, rel=1e-14)
    assert shard.clock == 5


def test_add_scales_the_change_by_staleness():
    shard = make(Add(inverse_plus_one))
    expected = shard.parameters.copy()
    for staleness in (0, 3):
        push(shard, gradient(), fetched=shard.clock - staleness)
        expected += gradient() / (staleness + 1)
    assert shard.parameters == pytest.approx(expected, rel=1e-14)


def test_gather_gives_the_weighted_mean_of_any_workers_to_the_rule():
    shard, reference = make(Gather(3, inverse), Adagrad(0.1)), make(ApplyAtOnce(), Adagrad(0.1))
    for worker, (seed, staleness) in enumerate([(1, 0), (2, 2), (3, 5)]):
        assert shard.clock == 0
        push(shard, gradient(seed), worker, fetched=-staleness)
    push(reference, (gradient(1) + gradient(2) / 2 + gradient(3) / 5) / 3)
    assert shard.parameters == pytest.approx(reference.parameters, rel=1e-13)
    assert shard.clock == 1
    push(shard, gradient(4))
    untouched = shard.parameters.copy()
    assert np.array_equal(shard.parameters, untouched)
    shard.finish()
    push(reference, gradient(4) / 3)
    assert shard.parameters == pytest.approx(reference.parameters, rel=1e-13)


def test_gather_counts_chunks_that_arrive_interleaved():
    shard = make(Gather(2))
    before = shard.parameters.copy()
    first, second = gradient(1), gradient(2)
    for number in range(shard.chunks):
        part = slice(number * CHUNK, (number + 1) * CHUNK)
        shard.receive(0, number, 0, first[part])
        assert np.array_equal(shard.parameters[part], before[part])
        shard.receive(1, number, 0, second[part])
        assert shard.parameters[part] == pytest.approx((before - 0.5 * (first + second) / 2)[part], rel=1e-13)
    assert shard.clock == 1


def test_delay_compensation_is_exact_on_a_quadratic():
    """With variance a / g^2 per coordinate, here the same in all: the gradient is a w wherever w has moved to."""
    a, start = 0.7, np.full(SIZE, 3.0)
    g = a * start
    shard = Shard(Range(0, SIZE), start.copy(), Sgd(0.1), DelayCompensated(a / g[0] ** 2), CHUNK)
    push(shard, g, worker=1)
    moved = shard.parameters.copy()
    push(shard, g, worker=0, fetched=0)
    assert shard.parameters == pytest.approx(moved - 0.1 * a * moved, rel=1e-13)


def test_delay_compensation_keeps_what_each_worker_fetched_last():
    shard = make(DelayCompensated(0.3))
    kept = {0: shard.parameters.copy(), 1: shard.parameters.copy()}
    for step, worker in enumerate([0, 1, 1, 0, 1]):
        g, w = gradient(step), shard.parameters.copy()
        push(shard, g, worker)
        assert shard.parameters == pytest.approx(w - 0.5 * (g + 0.3 * g * g * (w - kept[worker])), rel=1e-13)
        kept[worker] = shard.parameters.copy()


def test_adag_divides_by_the_distance_moved():
    shard = make(Adag(0.2))
    push(shard, gradient(1), worker=1)
    moved = shard.parameters - (np.arange(SIZE) - 4.0)
    expected = shard.parameters + gradient(2) / (moved**2 / 0.2 + 1)
    push(shard, gradient(2), worker=0)
    assert shard.parameters == pytest.approx(expected, rel=1e-13)


def test_what_is_too_stale_is_dropped_and_counted():
    policy = DropStale(ApplyAtOnce(), bound=2)
    shard = make(policy)
    for _ in range(4):
        push(shard, gradient())
    before = shard.parameters.copy()
    push(shard, gradient(), fetched=1)
    assert np.array_equal(shard.parameters, before)
    assert (shard.dropped, shard.clock, shard.pushes) == (1, 4, 5)
    push(shard, gradient(), fetched=2)
    assert not np.array_equal(shard.parameters, before)
