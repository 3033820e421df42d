"""Downpour on the virtual engine against its oracles."""

from collections import defaultdict

import numpy as np
import pytest

from mpidl.algorithms import Downpour
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Hooks, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.nn import adapt
from mpidl.parameters import shards
from mpidl.rules import RULES, Adagrad, Adam, Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

BATCH = 8


def make_engine(
    model, split, algorithm, rule, servers=1, replicas=1, epochs=2, times=None, seed=0, portion=BATCH, **options
):
    schedule = Schedule(Portions(split.samples, BATCH, portion, seed=7), epochs=epochs)
    initial = model.parameters.copy()
    parts = [
        Shard(part, initial[slice(*part)].copy(), ScheduledRule(rule), algorithm.policy(replicas), part.size)
        for part in shards(initial.size, servers)
    ]
    training = Training(algorithm, adapt(model), split, schedule)
    return VirtualEngine(training, parts, replicas, time=VirtualTime(times, seed), **options)


def serial(model, split, update, epochs=2, every=1):
    """Train in a plain loop; `update(parameters, gradient, step)` returns the new parameters."""
    portions = Portions(split.samples, BATCH, BATCH, seed=7)
    accrued, step = None, 0
    batches = [b for n in range(epochs * portions.per_epoch) for b in portions.batches(n)]
    for number, indices in enumerate(batches):
        gradient = model.loss_and_gradient(split.gather(indices))[1]
        accrued = gradient if accrued is None else accrued + gradient
        if (number + 1) % every == 0 or number == len(batches) - 1:
            step += 1
            model.parameters[:] = update(model.parameters, accrued, step)
            accrued = None
    return model.parameters.copy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_one_worker_is_serial_sgd_bit_for_bit(least_squares, servers, dtype):
    rate = np.dtype(dtype).type(0.05)
    expected = serial(*least_squares(dtype=dtype), lambda w, g, _: w - rate * g)
    engine = make_engine(*least_squares(dtype=dtype), Downpour(), Sgd(0.05), servers)
    engine.run()
    assert np.array_equal(engine.parameters(), expected)


@pytest.mark.parametrize("times", [None, Times(Uniform(0.5, 2), Exponential(0.1), Exponential(0.3), 1e3)])
@pytest.mark.parametrize("name", list(RULES))
def test_one_worker_is_serial_training_with_any_rule_and_any_timing(least_squares, name, times):
    rule = RULES[name]()
    model, split = least_squares()
    state = rule.init(model.parameters)

    def update(parameters, gradient, step):
        rule.update(parameters, state, gradient, step)
        return parameters

    expected = serial(model, split, update)
    engine = make_engine(*least_squares(), Downpour(), rule, servers=3, times=times)
    engine.run()
    assert np.array_equal(engine.parameters(), expected)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_n_push_is_gradient_accumulation_bit_for_bit(least_squares, k):
    expected = serial(*least_squares(), lambda w, g, _: w - 0.05 * g, every=k)
    engine = make_engine(*least_squares(), Downpour(n_push=k), Sgd(0.05), servers=2)
    totals = engine.run()
    assert np.array_equal(engine.parameters(), expected)
    assert totals.pushes == -(-totals.batches // k)


@pytest.mark.parametrize("k", [2, 4, 5])
def test_aligned_fetch_and_push_every_k_steps_is_serial_sgd_and_literal_is_not(least_squares, k):
    expected = serial(*least_squares(), lambda w, g, _: w - 0.05 * g)

    def difference(schedule):
        algorithm = Downpour(n_fetch=k, n_push=k, rate=0.05, schedule=schedule)
        engine = make_engine(*least_squares(), algorithm, Sgd(0.05))
        engine.run()
        return np.abs(engine.parameters() - expected).max()

    assert difference("aligned") < 1e-14
    assert difference("literal") > 1e-3


@pytest.mark.parametrize("schedule", ["aligned", "literal"])
@pytest.mark.parametrize(("n_fetch", "n_push"), [(1, 1), (3, 1), (1, 4), (2, 5)])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_update_is_lost(tally, schedule, n_fetch, n_push, overlap):
    model, split = tally()
    algorithm = Downpour(n_fetch, n_push, schedule, overlap=overlap)
    times = Times(Exponential(1.0), Exponential(0.2), Exponential(0.1), 1e4)
    engine = make_engine(model, split, algorithm, Sgd(1.0), servers=3, replicas=4, epochs=3, times=times)
    totals = engine.run()
    assert np.array_equal(engine.parameters(), -model.total(101, 3))
    assert totals.samples == 3 * 101
    assert int(totals.staleness.counts.sum()) == 3 * totals.pushes


@pytest.mark.parametrize("chunk", [8.0, 1e6])
def test_pushes_of_a_replica_arrive_in_their_order_whatever_each_takes(tally, monkeypatch, chunk):
    arrived, receive = defaultdict(list), Shard.receive_push

    def note(shard, worker, fetched, values, portions):
        arrived[shard, worker].append(portions[0])
        receive(shard, worker, fetched, values, portions)

    monkeypatch.setattr(Shard, "receive_push", note)
    times = Times(Exponential(0.1), Exponential(5.0), Exponential(0.1), 1e3, chunk=chunk)
    make_engine(*tally(), Downpour(n_fetch=6), Sgd(1.0), servers=2, replicas=3, epochs=6, times=times).run()
    assert len(arrived) == 6
    assert all(portions == sorted(portions) for portions in arrived.values())


def test_the_literal_schedule_pushes_first_and_flushes_the_rest(tally):
    model, split = tally()
    totals = make_engine(model, split, Downpour(n_push=4, schedule="literal"), Sgd(1.0), epochs=1).run()
    assert totals.batches == 13
    assert totals.pushes == 1 + 3  # steps 0, 4, 8 and 12; nothing is left to flush
    model, split = tally(samples=115)
    totals = make_engine(model, split, Downpour(n_push=4, schedule="literal"), Sgd(1.0), epochs=1).run()
    assert totals.pushes == 1 + 3 + 1  # 15 steps: two gradients after step 12 are flushed


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_mean_staleness_is_one_less_than_the_number_of_workers(tally, replicas):
    times = Times(Exponential(1.0))
    engine = make_engine(*tally(), Downpour(), Sgd(1.0), servers=2, replicas=replicas, epochs=80, times=times)
    totals = engine.run()
    # The run's first pushes are fresher: that costs the mean less than replicas / pushes.
    assert totals.staleness.sum / totals.staleness.counts.sum() == pytest.approx(replicas - 1, rel=0.02)


def test_overlap_adds_staleness_and_hides_latency(tally):
    times = Times(Constant(1.0), latency=Constant(0.4))
    plain = make_engine(*tally(), Downpour(), Sgd(1.0), epochs=3, times=times).run()
    overlapped = make_engine(*tally(), Downpour(overlap=True), Sgd(1.0), epochs=3, times=times).run()
    # Three messages of 0.4 s a step, or none to wait for; the push in flight and the fetch ahead are two steps.
    assert plain.last_push == pytest.approx(39 * 2.2, abs=2)
    assert overlapped.last_push == pytest.approx(39, abs=2)
    assert plain.staleness.max == 0
    assert np.flatnonzero(overlapped.staleness.counts).tolist() == [0, 1, 2]
    assert overlapped.staleness.counts[2] == 37


def test_a_seed_decides_a_run_and_the_number_of_servers_does_not(least_squares):
    def run(seed, servers):
        times = Times(Exponential(1.0), Constant(0.25))
        engine = make_engine(
            *least_squares(), Downpour(), Adagrad(0.1), servers=servers, replicas=3, times=times, seed=seed
        )
        engine.run()
        return engine.parameters()

    assert np.array_equal(run(1, 1), run(1, 1))
    assert np.array_equal(run(1, 1), run(1, 3))
    assert not np.array_equal(run(1, 1), run(2, 1))


def test_warm_start_lets_the_first_replica_train_alone(tally):
    model, split = tally()
    engine = make_engine(
        model, split, Downpour(warm_start=1.0), Sgd(1.0), replicas=3, epochs=3, times=Times(Constant(1.0))
    )
    totals = engine.run()
    # 13 steps alone, then 26 by three replicas.
    assert totals.last_push == pytest.approx(13 + 26 / 3, abs=1)
    assert np.array_equal(engine.parameters(), -model.total(101, 3))


def test_a_slow_server_makes_replicas_wait_and_changes_no_result(least_squares):
    fast = make_engine(*least_squares(), Downpour(), Adam(0.01), times=Times(Constant(1.0)))
    slow = make_engine(*least_squares(), Downpour(), Adam(0.01), times=Times(Constant(1.0), service=Constant(5.0)))
    assert slow.run().last_push > 5 * fast.run().last_push
    assert np.array_equal(slow.parameters(), fast.parameters())


def test_epochs_are_announced_once_each(tally):
    seen = []
    hooks, times = Hooks(on_epoch=seen.append), Times(Exponential(1.0))
    engine = make_engine(*tally(), Downpour(), Sgd(1.0), replicas=4, epochs=5, times=times, hooks=hooks)
    engine.run()
    assert seen == [1, 2, 3, 4]
