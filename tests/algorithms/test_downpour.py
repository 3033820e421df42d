"""Downpour on the virtual engine against its oracles."""

from collections import defaultdict
from itertools import count

import numpy as np
import pytest

from mpidl.algorithms import Downpour
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.rules import RULES, Adagrad, Adam, Sgd
from mpidl.shards.shard import Shard


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_one_worker_is_serial_sgd_bit_for_bit(lab, least_squares, servers, dtype):
    found = lab.trained(least_squares(dtype=dtype), Downpour(), servers=servers)
    assert found.dtype == dtype
    assert np.array_equal(found, lab.serial(least_squares(dtype=dtype), lab.sgd))


@pytest.mark.parametrize("times", [None, Times(Uniform(0.5, 2), Exponential(0.1), Exponential(0.3), 1e3)])
@pytest.mark.parametrize("name", list(RULES))
def test_one_worker_is_serial_training_with_any_rule_and_any_timing(lab, least_squares, name, times):
    rule, steps = RULES[name](), count(1)
    state = rule.init(least_squares()[0].parameters)

    def update(x, gradient):
        rule.update(x, state, gradient(x), next(steps))
        return x

    found = lab.trained(least_squares(), Downpour(), rule=rule, servers=3, times=times)
    assert np.array_equal(found, lab.serial(least_squares(), update))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_n_push_is_gradient_accumulation_bit_for_bit(lab, least_squares, k):
    problem = least_squares()
    x, batches = problem[0].parameters.copy(), lab.batches(problem)
    for first in range(0, len(batches), k):
        x = x - 0.05 * sum(lab.gradient(problem, x, indices) for indices in batches[first : first + k])
    engine = lab.engine(least_squares(), Downpour(n_push=k))
    totals = engine.run()
    assert np.array_equal(engine.parameters(), x)
    assert totals.pushes == -(-totals.batches // k)


@pytest.mark.parametrize("k", [2, 4, 5])
def test_aligned_fetch_and_push_every_k_steps_is_serial_sgd_and_literal_is_not(lab, least_squares, k):
    expected = lab.serial(least_squares(), lab.sgd)
    aligned, literal = (
        lab.trained(least_squares(), Downpour(n_fetch=k, n_push=k, rate=0.05, schedule=schedule))
        for schedule in ("aligned", "literal")
    )
    assert np.abs(aligned - expected).max() < 1e-14
    assert np.abs(literal - expected).max() > 1e-3


@pytest.mark.parametrize("schedule", ["aligned", "literal"])
@pytest.mark.parametrize(("n_fetch", "n_push"), [(1, 1), (3, 1), (1, 4), (2, 5)])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_update_is_lost(lab, tally, schedule, n_fetch, n_push, overlap):
    model, split = tally()
    algorithm = Downpour(n_fetch, n_push, schedule, overlap=overlap)
    times = Times(Exponential(1.0), Exponential(0.2), Exponential(0.1), 1e4)
    engine = lab.engine((model, split), algorithm, Sgd(1.0), servers=3, replicas=4, epochs=3, times=times)
    totals = engine.run()
    assert np.array_equal(engine.parameters(), -model.total(101, 3))
    assert totals.samples == 3 * 101
    assert int(totals.staleness.counts.sum()) == 3 * totals.pushes


@pytest.mark.parametrize("chunk", [8.0, 1e6])
def test_pushes_of_a_replica_arrive_in_their_order_whatever_each_takes(lab, tally, monkeypatch, chunk):
    arrived, receive = defaultdict(list), Shard.receive_push

    def note(shard, worker, fetched, values, portions):
        arrived[shard, worker].append(portions[0])
        receive(shard, worker, fetched, values, portions)

    monkeypatch.setattr(Shard, "receive_push", note)
    times = Times(Exponential(0.1), Exponential(5.0), Exponential(0.1), 1e3, chunk=chunk)
    lab.engine(tally(), Downpour(n_fetch=6), Sgd(1.0), servers=2, replicas=3, epochs=6, times=times).run()
    assert len(arrived) == 6
    assert all(portions == sorted(portions) for portions in arrived.values())


def test_the_literal_schedule_pushes_first_and_flushes_the_rest(lab, tally):
    model, split = tally()
    totals = lab.engine((model, split), Downpour(n_push=4, schedule="literal"), Sgd(1.0), epochs=1).run()
    assert totals.batches == 13
    assert totals.pushes == 1 + 3  # steps 0, 4, 8 and 12; nothing is left to flush
    model, split = tally(samples=115)
    totals = lab.engine((model, split), Downpour(n_push=4, schedule="literal"), Sgd(1.0), epochs=1).run()
    assert totals.pushes == 1 + 3 + 1  # 15 steps: two gradients after step 12 are flushed


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_mean_staleness_is_one_less_than_the_number_of_workers(lab, tally, replicas):
    times = Times(Exponential(1.0))
    engine = lab.engine(tally(), Downpour(), Sgd(1.0), servers=2, replicas=replicas, epochs=80, times=times)
    totals = engine.run()
    # The run's first pushes are fresher: that costs the mean less than replicas / pushes.
    assert totals.staleness.sum / totals.staleness.counts.sum() == pytest.approx(replicas - 1, rel=0.02)


def test_overlap_adds_staleness_and_hides_latency(lab, tally):
    times = Times(Constant(1.0), latency=Constant(0.4))
    plain = lab.engine(tally(), Downpour(), Sgd(1.0), servers=1, epochs=3, times=times).run()
    overlapped = lab.engine(tally(), Downpour(overlap=True), Sgd(1.0), servers=1, epochs=3, times=times).run()
    # Three messages of 0.4 s a step, or none to wait for; the push in flight and the fetch ahead are two steps.
    assert plain.trained_seconds == pytest.approx(39 * 2.2, abs=2)
    assert overlapped.trained_seconds == pytest.approx(39, abs=2)
    assert plain.staleness.max == 0
    assert np.flatnonzero(overlapped.staleness.counts).tolist() == [0, 1, 2]
    assert overlapped.staleness.counts[2] == 37


def test_a_seed_decides_a_run_and_the_number_of_servers_does_not(lab, least_squares):
    def run(seed, servers):
        options = {"rule": Adagrad(0.1), "times": Times(Exponential(1.0), Constant(0.25))}
        return lab.trained(least_squares(), Downpour(), servers=servers, replicas=3, seed=seed, **options)

    assert np.array_equal(run(1, 1), run(1, 1))
    assert np.array_equal(run(1, 1), run(1, 3))
    assert not np.array_equal(run(1, 1), run(2, 1))


def test_warm_start_lets_the_first_replica_train_alone(lab, tally):
    model, split = tally()
    engine = lab.engine(
        (model, split), Downpour(warm_start=1.0), Sgd(1.0), replicas=3, epochs=3, times=Times(Constant(1.0))
    )
    totals = engine.run()
    # 13 steps alone, then 26 by three replicas.
    assert totals.trained_seconds == pytest.approx(13 + 26 / 3, abs=1)
    assert np.array_equal(engine.parameters(), -model.total(101, 3))


def test_a_slow_server_makes_replicas_wait_and_changes_no_result(lab, least_squares):
    fast = lab.engine(least_squares(), Downpour(), Adam(0.01), times=Times(Constant(1.0)))
    slow = lab.engine(least_squares(), Downpour(), Adam(0.01), times=Times(Constant(1.0), service=Constant(5.0)))
    assert slow.run().trained_seconds > 5 * fast.run().trained_seconds
    assert np.array_equal(slow.parameters(), fast.parameters())


def test_epochs_are_announced_once_each(lab, tally):
    seen = []
    times = Times(Exponential(1.0))
    engine = lab.engine(tally(), Downpour(), Sgd(1.0), replicas=4, epochs=5, times=times, on_epoch=seen.append)
    engine.run()
    assert seen == [1, 2, 3, 4]
