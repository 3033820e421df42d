"""What a shard does with a push, chunk by chunk, against each policy's formula."""

import numpy as np
import pytest

from mpidl.config import from_dict
from mpidl.job.build import build
from mpidl.job.fill import fill
from mpidl.job.placed import place
from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adam, Nesterov, Sgd
from mpidl.shards.policies import (
    AccumulateGradients,
    AddChange,
    ApplyAtOnce,
    Assign,
    DampedChange,
    DelayCompensated,
    DelayedNesterov,
    FirstOfStep,
    drop_above,
    inverse,
    inverse_plus_one,
)  # fmt: skip
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

SIZE, CHUNK = 13, 4


def make(policy, rule=None):
    return Shard(Range(5, 5 + SIZE), np.arange(SIZE) - 4.0, ScheduledRule(rule or Sgd(0.5)), policy, CHUNK)


def push(shard, values, worker=0, fetched=None):
    fetched = shard.clock if fetched is None else fetched
    for number in reversed(range(shard.chunks)):
        shard.receive_chunk(worker, number, fetched, values[..., number * CHUNK : (number + 1) * CHUNK])


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
    shard = make(AddChange(inverse_plus_one))
    expected = shard.parameters.copy()
    for staleness in (0, 3):
        push(shard, gradient(), fetched=shard.clock - staleness)
        expected += gradient() / (staleness + 1)
    assert shard.parameters == pytest.approx(expected, rel=1e-14)


def test_gather_gives_the_weighted_mean_of_any_workers_to_the_rule():
    shard = make(AccumulateGradients(3, inverse), Adagrad(0.1))
    reference = Shard(shard.range, shard.parameters.copy(), ScheduledRule(Adagrad(0.1)), ApplyAtOnce(), SIZE)
    for worker, (seed, staleness) in enumerate([(1, 0), (2, 2), (3, 5)]):
        assert shard.clock == 0
        push(shard, gradient(seed), worker, fetched=-staleness)
    rates = 1 + 1 / 2 + 1 / 5
    mean = (gradient(1) + gradient(2) / 2 + gradient(3) / 5) / rates
    reference.update(0, mean, 1, rates / 3)
    assert shard.parameters == pytest.approx(reference.parameters, rel=1e-13)
    assert shard.clock == 1
    before = shard.parameters.copy()
    push(shard, gradient(4))
    assert np.array_equal(shard.parameters, before)
    shard.apply_rest()
    reference.update(0, gradient(4), 2, 1 / 3)
    assert shard.parameters == pytest.approx(reference.parameters, rel=1e-13)


@pytest.mark.parametrize("rule", [Adagrad(0.1), Adam(0.1)])
def test_staleness_divides_the_rate_and_not_the_gradient(rule):
    """Adagrad and Adam undo what divides all gradients alike."""
    fresh, stale = (make(AccumulateGradients(1, inverse), rule) for _ in range(2))
    start = fresh.parameters.copy()
    for step in range(4):
        push(fresh, gradient(step), fetched=fresh.clock)
        push(stale, gradient(step), fetched=stale.clock - 10)
    assert stale.parameters - start == pytest.approx((fresh.parameters - start) / 10, rel=1e-6)


def test_gradients_of_equal_staleness_are_those_of_plain_sgd_at_a_divided_rate():
    shard, start = make(AccumulateGradients(3, inverse)), np.arange(SIZE) - 4.0
    for worker, staleness in enumerate([1, 4, 2]):
        push(shard, gradient(worker), worker, fetched=-staleness)
    expected = start - 0.5 * (gradient(0) + gradient(1) / 4 + gradient(2) / 2) / 3
    assert shard.parameters == pytest.approx(expected, rel=1e-13)


def test_gather_counts_chunks_that_arrive_interleaved():
    shard = make(AccumulateGradients(2))
    before = shard.parameters.copy()
    first, second = gradient(1), gradient(2)
    for number in reversed(range(shard.chunks)):
        part = slice(number * CHUNK, (number + 1) * CHUNK)
        shard.receive_chunk(0, number, 0, first[part])
        assert np.array_equal(shard.parameters[part], before[part])
        shard.receive_chunk(1, number, 0, second[part])
        assert shard.parameters[part] == pytest.approx((before - 0.5 * (first + second) / 2)[part], rel=1e-13)
    assert shard.clock == 1


def test_delay_compensation_is_exact_on_a_quadratic():
    """With variance a / g^2 per coordinate, here the same in all: the gradient is a w wherever w has moved to."""
    a, start = 0.7, np.full(SIZE, 3.0)
    g = a * start
    policy = DelayCompensated(a / g[0] ** 2)
    shard = Shard(Range(0, SIZE), start.copy(), ScheduledRule(Sgd(0.1)), policy, CHUNK)
    push(shard, np.stack((g, start)), worker=1)
    moved = shard.parameters.copy()
    push(shard, np.stack((g, start)), worker=0, fetched=0)
    assert shard.parameters == pytest.approx(moved - 0.1 * a * moved, rel=1e-13)


def test_delay_compensation_compares_with_what_was_fetched():
    shard = make(DelayCompensated(0.3))
    for step in range(5):
        g, w, fetched = gradient(step), shard.parameters.copy(), gradient(step + 5)
        push(shard, np.stack((g, fetched)))
        assert shard.parameters == pytest.approx(w - 0.5 * (g + 0.3 * g * g * (w - fetched)), rel=1e-13)


def test_adaptive_delay_compensation_divides_by_the_root_of_the_mean_square():
    shard, mean = make(DelayCompensated(2.0, 0.9)), np.zeros(SIZE)
    for step in range(5):
        g, w, fetched = gradient(step), shard.parameters.copy(), gradient(step + 5)
        mean = 0.9 * mean + 0.1 * g * g
        push(shard, np.stack((g, fetched)))
        factor = 2.0 / np.sqrt(mean + 1e-7)
        assert shard.parameters == pytest.approx(w - 0.5 * (g + factor * g * g * (w - fetched)), rel=1e-13)


def test_adag_divides_by_the_distance_moved():
    shard, before = make(DampedChange(0.2)), np.arange(SIZE) - 4.0
    moved = before - gradient(1)
    push(shard, np.stack((gradient(2), gradient(1))))
    assert shard.parameters == pytest.approx(before + gradient(2) / (moved**2 / 0.2 + 1), rel=1e-13)


def test_adag_divides_by_the_norm_of_each_chunk():
    shard, before = make(DampedChange(0.2, norm=True)), np.arange(SIZE) - 4.0
    moved = before - gradient(1)
    push(shard, np.stack((gradient(2), gradient(1))))
    for start in range(0, SIZE, CHUNK):
        part = slice(start, start + CHUNK)
        expected = before[part] + gradient(2)[part] / (np.sum(moved[part] ** 2) / 0.2 + 1)
        assert shard.parameters[part] == pytest.approx(expected, rel=1e-13)


def test_the_damping_of_adag_follows_the_rate():
    scheduled = ScheduledRule(Sgd(1.0), lambda portion: 0.5)
    shard = Shard(Range(0, SIZE), np.full(SIZE, 3.0), scheduled, DampedChange(0.2), CHUNK)
    push(shard, np.stack((np.ones(SIZE), np.full(SIZE, 1.0))))
    assert shard.parameters == pytest.approx(np.full(SIZE, 3 + 1 / (2**2 / 0.1 + 1)), rel=1e-13)


def test_what_is_too_stale_is_dropped_and_counted():
    policy = drop_above(2, ApplyAtOnce())
    shard = make(policy)
    for _ in range(4):
        push(shard, gradient())
    before = shard.parameters.copy()
    push(shard, gradient(), fetched=1)
    assert np.array_equal(shard.parameters, before)
    assert (shard.dropped, shard.clock, shard.pushes) == (1, 4, 5)
    push(shard, gradient(), fetched=2)
    assert not np.array_equal(shard.parameters, before)


def test_a_dropped_push_is_no_step_of_the_rule():
    """Adam's correction of its bias depends on the number of steps."""
    shard, reference = make(drop_above(1, ApplyAtOnce()), Adam(0.1)), make(ApplyAtOnce(), Adam(0.1))
    for step in range(4):
        push(shard, gradient(step))
        push(shard, gradient(7), fetched=shard.clock - 2)
        push(reference, gradient(step))
    assert shard.dropped == 4
    assert shard.parameters.tobytes() == reference.parameters.tobytes()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_delayed_nesterov_is_the_papers_algorithm(count):
    """m = beta m + sum / N and w -= rate (beta m + g / N) with every N-th gradient; w -= rate g / N with the others."""
    rule, random = Nesterov(0.7, 0.9), np.random.default_rng(2)
    shard = make(DelayedNesterov(count), rule)
    w, m, total = shard.parameters.copy(), np.zeros(SIZE), np.zeros(SIZE)
    for number in range(1, 11):
        g = random.normal(size=SIZE)
        total += g
        w -= 0.7 * g / count
        if number % count == 0:
            m = 0.9 * m + total / count
            w -= 0.7 * 0.9 * m
            total[:] = 0
        push(shard, g)
        assert shard.parameters == pytest.approx(w, rel=1e-12)


def test_assigning_takes_a_push_for_the_parameters():
    shard = make(Assign())
    push(shard, gradient())
    assert np.array_equal(shard.parameters, gradient())


def test_of_each_step_the_first_count_and_their_mean():
    shard = make(FirstOfStep(2, 3), Sgd(1.0))
    before = shard.parameters.copy()
    for worker in (2, 0, 1):
        shard.receive_push(worker, 0, np.full(SIZE, 1.0 + worker))
    # Workers 2 and 0 made the step; worker 1 was late.
    assert np.array_equal(shard.parameters, before - 2)
    assert (shard.clock, shard.pushes, shard.dropped) == (1, 3, 1)
    shard.receive_push(1, 1, np.ones(SIZE))
    assert shard.clock == 1


def test_a_step_does_not_wait_for_who_has_left():
    shard = make(FirstOfStep(3, 3), Sgd(1.0))
    before = shard.parameters.copy()
    shard.receive_push(0, 0, np.ones(SIZE))
    shard.remove_worker(0)
    shard.receive_push(1, 0, np.full(SIZE, 3.0))
    assert shard.clock == 0
    shard.remove_worker(2)
    assert np.array_equal(shard.parameters, before - 2)
    assert shard.clock == 1


def test_chunks_of_several_pushes_may_be_interleaved_in_a_step():
    shard = make(FirstOfStep(2, 3), Sgd(1.0))
    before = shard.parameters.copy()
    pieces = [slice(*piece) for piece in shard.pieces]
    for chunk, piece in reversed([*enumerate(pieces)]):
        for worker in (0, 2, 1):
            shard.receive_chunk(worker, chunk, 0, np.full(SIZE, 1.0 + worker)[piece])
    assert np.array_equal(shard.parameters, before - 2)
    assert (shard.clock, shard.dropped) == (1, 1)


def test_a_job_shows_a_policy_the_first_values(monkeypatch):
    """They are the parameters when it is attached, not memory that is filled afterwards."""
    shown = []

    class Watching(ApplyAtOnce):
        def attach(self, shard):
            shown.append(shard.parameters.copy())

    values = {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}
    job = build(from_dict(values | {"algorithm": {"name": "downpour"}, "server": {"rule": "sgd"}}))
    monkeypatch.setattr(type(job.algorithm), "policy", lambda algorithm, replicas: Watching())
    size = job.original.layout.size
    shard = fill(place(job, 1), Range(0, size), np.empty(size, job.dtype), 100)
    assert np.array_equal(shown[0], shard.parameters)
