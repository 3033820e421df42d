"""The synchronous algorithms against what they must equal, on the virtual engine in float64."""

import numpy as np
import pytest

from mpidl.algorithms import Averaging, BackupSync, Diloco, Easgd, Fedprox, Sync
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Gradient, NextBatch, Reduce
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.errors import UsageError
from mpidl.rules import RULES, Adagrad, Adam, Adamw, Momentum, Nesterov, Sgd

EVEN = Times(Constant(1.0), Constant(0.125))
REPLICAS = 3


def rounds(batches, replicas=REPLICAS, window=1):
    """Return for each round the batches of each replica, as replicas in step take them one by one."""
    taken = [batches[first : first + replicas] for first in range(0, len(batches), replicas)]
    return [
        [[step[r] for step in taken[first : first + window] if r < len(step)] for r in range(replicas)]
        for first in range(0, len(taken), window)
    ]


def large_batch(lab, problem, rule, epochs=2, replicas=REPLICAS, weigh=lambda indices: 1):
    """Serial training on the mean of `replicas` gradients, summed in order."""
    x = problem[0].parameters.copy()
    state = rule.init(x)
    for step, parts in enumerate(rounds(lab.batches(problem, epochs), replicas), 1):
        gradients = [lab.gradient(problem, x, indices) for part in parts for indices in part]
        weights = [weigh(indices) for part in parts for indices in part]
        if len(set(weights)) == 1:
            mean = np.sum(gradients, axis=0) / len(gradients)
        else:
            mean = np.sum([g * (w / sum(weights)) for g, w in zip(gradients, weights, strict=True)], axis=0)
        rule.update(x, state, mean, step)
    return x


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize(("servers", "chunk"), [(1, None), (3, None), (3, 2)])
def test_hardsync_is_serial_training_on_large_batches_bit_for_bit(lab, least_squares, name, servers, chunk):
    rule = RULES[name]()
    found = lab.trained(least_squares(), Sync(), rule=rule, servers=servers, chunk=chunk, replicas=REPLICAS, times=EVEN)
    # The last batch of an epoch is a smaller one, and counts less.
    assert np.array_equal(found, large_batch(lab, least_squares(), rule, weigh=len))


@pytest.mark.parametrize("servers", [1, 3])
def test_gradients_count_what_their_batches_weigh(lab, least_squares, weighed, servers):
    problem, weigh = weighed(least_squares())
    found = lab.trained(problem, Sync(), servers=servers, replicas=REPLICAS, times=EVEN)
    assert np.array_equal(found, large_batch(lab, least_squares(), Sgd(0.05), weigh=weigh))
    assert not np.array_equal(found, large_batch(lab, least_squares(), Sgd(0.05), weigh=len))


def test_backup_workers_without_backup_are_hardsync(lab, least_squares):
    options = {"rule": Adagrad(0.05), "replicas": REPLICAS}
    found = lab.trained(least_squares(), BackupSync(0), times=EVEN, **options)
    # Gradients that arrive together are summed in the replicas' order: not even rounding differs.
    assert np.array_equal(found, large_batch(lab, least_squares(), Adagrad(0.05)))
    at_random = lab.trained(least_squares(), BackupSync(0), times=Times(Uniform(0.5, 1.5)), **options)
    assert at_random == pytest.approx(large_batch(lab, least_squares(), Adagrad(0.05)), rel=1e-12)


@pytest.mark.parametrize("backup", [0, 1, 2, 3])
def test_a_step_with_backup_workers_takes_as_long_as_the_last_gradient_that_counts(lab, tally, backup):
    """With 5 replicas that need 1, 2, ... 5 seconds, a step takes the (5 - b)-th of them."""
    times = Times(Constant(1.0), slow={replica: replica + 1.0 for replica in range(5)})
    engine = lab.engine(tally(), BackupSync(backup), replicas=5, servers=1, epochs=40, times=times)
    totals = engine.run()
    updates = engine.shards[0].clock
    # The run's last steps, when data run out, are shorter.
    assert totals.last_push / updates == pytest.approx(5 - backup, rel=0.03)
    used = totals.pushes - totals.shards.dropped
    assert used == pytest.approx(updates * (5 - backup), abs=5)


def test_late_gradients_are_dropped_whole_and_the_others_are_applied(lab, tally):
    model, split = tally()
    times = Times(Exponential(1.0))
    dropped = []
    engine = lab.engine((model, split), BackupSync(1), rule=Sgd(1.0), replicas=4, epochs=8, times=times)
    for shard in engine.shards:
        shard.on_drop = lambda push: dropped.append(push.batches[0])
    totals = engine.run()
    assert totals.shards.dropped == len(dropped) > 0
    # A portion is one batch here; each is dropped by both shards, as they see the same arrivals.
    late = sorted(set(dropped))
    assert 2 * len(late) == len(dropped)
    assert totals.samples == 8 * 101
    assert engine.parameters()[0] < 0


@pytest.mark.parametrize("backup", [1, 2])
def test_a_step_with_restarts_takes_as_long_as_an_order_statistic(lab, tally, backup):
    """The (8 - b)-th of 8 exponential durations has the mean 1/8 + 1/7 + ... + 1/(b + 1)."""
    algorithm = BackupSync(backup, restart=True)
    engine = lab.engine(tally(), algorithm, replicas=8, epochs=60, times=Times(Exponential(1.0)))
    totals = engine.run()
    mean = sum(1 / k for k in range(backup + 1, 9))
    assert totals.last_push / engine.shards[0].clock == pytest.approx(mean, rel=0.09)
    # A batch whose gradient was given up comes again: none is dropped, and each counts once.
    batches = 60 * -(-101 // 8)
    assert (totals.pushes, totals.batches, totals.shards.dropped) == (batches, batches, 0)
    assert totals.samples == 60 * 101


@pytest.mark.parametrize("times", [Times(Exponential(1.0), Constant(0.1), cores=3), Times(Exponential(1.0))])
def test_without_backup_workers_nothing_is_restarted(lab, least_squares, times):
    plain, restarting = (
        lab.trained(least_squares(), BackupSync(0, restart=restart), replicas=4, times=times)
        for restart in (False, True)
    )
    assert np.array_equal(plain, restarting)


def test_averages_of_every_step_are_averaged_gradients(lab, least_squares):
    found = lab.trained(
        least_squares(), Averaging(rate=0.05, tau=1, inner="sgd"), replicas=REPLICAS, times=lab.random_times
    )
    assert found == pytest.approx(large_batch(lab, least_squares(), Sgd(0.05)), rel=1e-12)


def local_rounds(lab, problem, window, local, combine):
    """Train each replica from the same x in each round, then combine what they hold."""
    x = problem[0].parameters.copy()
    for parts in rounds(lab.batches(problem), window=window):
        results = []
        for part in parts:
            own = x.copy()
            for indices in part:
                own = local(own, lab.gradient(problem, own, indices), x)
            if part:
                results.append(own)
        x = combine(x, results)
    return x


def test_fedprox_without_proximal_term_is_federated_averaging(lab, least_squares):
    options = {"replicas": REPLICAS, "times": EVEN}
    found = lab.trained(least_squares(), Fedprox(rate=0.05, window=4, mu=0.0, inner="sgd"), **options)
    assert np.array_equal(found, lab.trained(least_squares(), Averaging(rate=0.05, tau=4, inner="sgd"), **options))


def test_fedprox_on_a_quadratic_ends_a_round_at_the_proximal_minimum():
    """Argmin of (a / 2)(w - b)^2 + (mu / 2)(w - w_t)^2 is (a b + mu w_t) / (a + mu)."""
    a, b, mu, start = 2.0, 3.0, 0.5, -1.0
    w = np.array([start])
    replica = Fedprox(rate=0.1, window=400, mu=mu, inner="sgd").replica(0, w, 1, ReplicaState())
    request = next(replica)
    while not isinstance(request, Reduce):
        answer = "batch" if isinstance(request, NextBatch) else a * (w - b)
        assert isinstance(request, NextBatch | Gradient)
        request = replica.send(answer)
    assert w[0] == pytest.approx((a * b + mu * start) / (a + mu), rel=1e-12)


def test_diloco_of_single_inner_sgd_steps_and_outer_sgd_is_large_batch_sgd(lab, least_squares):
    algorithm = Diloco(rate=0.05, window=1, inner="sgd")
    found = lab.trained(least_squares(), algorithm, rule=Sgd(1.0), replicas=REPLICAS, times=lab.random_times)
    assert found == pytest.approx(large_batch(lab, least_squares(), Sgd(0.05)), rel=1e-12)


def test_diloco_is_inner_adamw_and_outer_nesterov(lab, least_squares):
    problem, inner, outer = least_squares(), Adamw(0.01), Nesterov(0.7, 0.9)
    x = problem[0].parameters.copy()
    velocity = outer.init(x)
    states, steps = [inner.init(x) for _ in range(REPLICAS)], [0] * REPLICAS
    for number, parts in enumerate(rounds(lab.batches(problem), window=4), 1):
        changes = []
        for r, part in enumerate(parts):
            own = x.copy()
            for indices in part:
                steps[r] += 1
                inner.update(own, states[r], lab.gradient(problem, own, indices), steps[r])
            if part:
                changes.append(x - own)
        outer.update(x, velocity, np.mean(changes, axis=0), number)
    found = lab.trained(least_squares(), Diloco(rate=0.01, window=4), rule=outer, replicas=REPLICAS, times=EVEN)
    assert found == pytest.approx(x, rel=1e-12)


def test_asynchronous_diloco_of_one_replica_and_no_delay_is_synchronous_diloco(lab, least_squares):
    options = {"rule": Nesterov(0.7, 0.9), "times": EVEN}
    found = lab.trained(least_squares(), Diloco(window=3, asynchronous=True, delay=1), **options)
    assert found == pytest.approx(lab.trained(least_squares(), Diloco(window=3), **options), rel=1e-12)


def test_asynchronous_diloco_takes_nesterov_only():
    with pytest.raises(UsageError, match=r"^server.rule: adam, expected nesterov with algorithm.asynchronous = true$"):
        Diloco(asynchronous=True).check(False, Adam())
    Diloco(asynchronous=False).check(False, Momentum())


# Synchronous elastic averaging.


class Quadratics:
    """Replicas with an objective (a / 2)(x - b)^2 each, meeting in reductions around a center."""

    def __init__(self, algorithm, minima, a=1.0):
        self.minima, self.a = minima, a
        self.x = [np.zeros(1) for _ in minima]
        self._replicas = [algorithm.replica(i, x, len(minima), ReplicaState()) for i, x in enumerate(self.x)]
        self._requests = [next(replica) for replica in self._replicas]
        self.center = np.zeros(1)

    def run(self, steps):
        for _ in range(steps):
            self._requests = [r.send("batch") for r in self._replicas]
            if isinstance(self._requests[0], Reduce):
                self.center = self.center + sum(request.vector for request in self._requests)
                for request in self._requests:
                    assert not request.mean
                    request.parameters[:] = self.center
                self._requests = [r.send(len(self.x)) for r in self._replicas]
            gradients = [self.a * (r.parameters - b) for r, b in zip(self._requests, self.minima, strict=True)]
            self._requests = [r.send(g) for r, g in zip(self._replicas, gradients, strict=True)]


@pytest.mark.parametrize("tau", [1, 4, 16])
def test_the_center_of_synchronous_elastic_averaging_is_the_mean_of_the_minima(tau):
    minima = [-3.0, 1.0, 8.0]
    system = Quadratics(Easgd(rate=0.1, tau=tau, alpha=0.2, asynchronous=False), minima)
    system.run(4000)
    assert system.center[0] == pytest.approx(np.mean(minima), rel=1e-12)


def test_replicas_of_synchronous_easgd_settle_where_gradient_and_force_balance():
    """At tau = 1, x_i - c = a (b_i - mean b) / (a + rho)."""
    minima, a, rho, rate = np.array([-3.0, 1.0, 8.0]), 2.0, 0.5, 0.1
    system = Quadratics(Easgd(rate=rate, tau=1, alpha=rate * rho, asynchronous=False), minima, a)
    system.run(4000)
    assert np.ravel(system.x) - system.center == pytest.approx(a * (minima - minima.mean()) / (a + rho), rel=1e-12)


def test_synchronous_easgd_trains_where_replicas_have_different_numbers_of_batches(lab, least_squares):
    model, split = least_squares()
    before = model.loss_and_gradient(split.gather(np.arange(101)))[0]
    model.parameters[:] = lab.trained(
        least_squares(), Easgd(asynchronous=False), replicas=REPLICAS, epochs=30, times=lab.random_times
    )
    assert model.loss_and_gradient(split.gather(np.arange(101)))[0] < 0.5 * before


@pytest.mark.parametrize("algorithm", [Sync(), Averaging(rate=0.02, tau=50)])
def test_the_time_of_a_run_begins_with_its_first_gradient(lab, least_squares, algorithm):
    engine = lab.engine(least_squares(), algorithm, servers=1, times=Times(Constant(1.0)))
    assert engine.run().seconds == pytest.approx(len(lab.batches(least_squares())))
