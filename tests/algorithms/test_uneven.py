"""Algorithms for workers with different data and speeds, on f_i(x) = (x - c_i)^2 / 2 with c_i of each worker's own."""

import numpy as np
import pytest

from mpidl.algorithms import Downpour, Rescaled, Ringleader
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adam, Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

SIZE, CHUNK, RATE = 7, 3, 0.1
SPEEDS = np.array([1.0, 3.0, 8.0, 2.0])
CENTERS = np.random.default_rng(5).normal(size=(len(SPEEDS), SIZE))


class Workers:
    """Workers that compute gradients at what they fetched last and push them to a shard, in random order."""

    def __init__(self, algorithm, rule=None, seed=0):
        workers = len(SPEEDS)
        scheduled = ScheduledRule(rule or Sgd(RATE))
        self.shard = Shard(Range(0, SIZE), np.zeros(SIZE), scheduled, algorithm.shard_policy(workers), CHUNK)
        self.random, self.clocks = np.random.default_rng(seed), [0] * workers
        self.points = [np.zeros(SIZE)] * workers

    def push(self):
        """Let one of them push and fetch; return its number and gradient, and the clock at which that was computed."""
        worker = int(self.random.choice(len(SPEEDS), p=SPEEDS / SPEEDS.sum()))
        gradient, clock = self.points[worker] - CENTERS[worker], self.clocks[worker]
        self.shard.receive_push(worker, clock, gradient)
        self.points[worker], self.clocks[worker] = self.shard.parameters.copy(), self.shard.clock
        return worker, gradient, clock


def test_ringleader_is_the_papers_algorithm():
    """In two phases, from the table of the gradients of all workers, by a plain loop with lists of gradients."""
    workers, n = Workers(Ringleader()), len(SPEEDS)
    x, clock, delays, used, pushed = np.zeros(SIZE), 0, [], set(), 0
    table, later, pending = [[] for _ in range(n)], [[] for _ in range(n)], set()
    for _ in range(400):
        worker, gradient, computed_at = workers.push()
        entry, pushed, updates = (gradient, computed_at, pushed), pushed + 1, False
        if not pending:  # The first phase.
            table[worker].append(entry)
            if all(table):
                pending, updates = set(range(n)), True
        elif worker in pending:
            table[worker].append(entry)
            updates = True
        else:
            later[worker].append(entry)
        if updates:
            x = x - RATE * np.mean([np.mean([each[0] for each in row], axis=0) for row in table], axis=0)
            delays += [clock - each[1] for row in table for each in row]
            used |= {each[2] for row in table for each in row}
            clock += 1
            pending.remove(worker)
            if not pending:
                table, later = later, [[] for _ in range(n)]
        assert workers.shard.clock == clock
        assert np.abs(workers.shard.parameters - x).max() < 1e-12
    # All but those that the last round has not used yet.
    waiting = {each[2] for rows in (later, [] if pending else table) for row in rows for each in row}
    assert used == set(range(pushed)) - waiting
    assert clock > 50
    assert n < max(delays) <= 2 * n - 2


@pytest.mark.parametrize("rule", [Sgd(RATE), Adam(0.1)])
def test_gradients_of_a_round_that_the_end_cuts_off_are_used(rule):
    """Each of them has its share of the rate: two of four workers have pushed."""
    workers = Workers(Ringleader(), rule)
    for worker in (1, 3, 1):
        workers.shard.receive_push(worker, 0, CENTERS[worker])
    assert workers.shard.clock == 0
    for worker in range(len(SPEEDS)):
        workers.shard.remove_worker(worker)
    expected, alone = np.zeros(SIZE), (CENTERS[1] + CENTERS[3]) / len(SPEEDS)
    rule.update(expected, rule.init(expected), alone, 1)
    assert workers.shard.clock == 1
    assert workers.shard.parameters == pytest.approx(expected, rel=1e-12)


def test_a_round_goes_on_without_who_has_left():
    workers = Workers(Ringleader())
    shard, zero = workers.shard, np.zeros(SIZE)
    for worker in (0, 1, 2):
        shard.receive_push(worker, 0, zero)
    assert shard.clock == 0
    shard.remove_worker(3)
    assert shard.clock == 1
    # One that is awaited in the second phase, and one that returns and is awaited from the next round on.
    shard.remove_worker(0)
    shard.add_worker(3)
    for worker, clock in ((3, 1), (1, 2), (1, 2), (2, 3), (2, 4), (2, 4)):
        shard.receive_push(worker, shard.clock, zero)
        assert shard.clock == clock


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_gradients_that_wait_go_on_with_another_number_of_workers(workers):
    """In the first phase worker 0 has given 4, and worker 3 twice: of three workers, 3 joins 0, of two, 1."""
    first = Shard(Range(0, 5), np.zeros(5), ScheduledRule(Sgd(1.0)), Ringleader().shard_policy(4), 2)
    other = Shard(Range(0, 5), np.zeros(5), ScheduledRule(Sgd(1.0)), Ringleader().shard_policy(workers), 3)
    for worker, value in ((0, 4.0), (3, 6.0), (3, 8.0)):
        first.receive_push(worker, 0, np.full(5, value))
    fresh = {name: values for name, values in other.state().items() if name.startswith("policy/rows")}
    other.load({**fresh, **first.state()})
    for worker in range(workers):
        other.add_worker(worker)
    for worker in set(range(workers)) - {0, 3 % workers}:
        assert other.clock == 0
        other.receive_push(worker, 0, np.zeros(5))
    assert other.clock == (workers > 2)
    if other.clock:
        given = 6.0 if workers == 3 else 4.0 + 7.0
        assert other.parameters == pytest.approx(np.full(5, -given / workers), rel=1e-14)


def test_each_worker_has_the_same_sum_of_rates():
    """With gradients of 1 in an element of each worker's own, the parameters count the rates."""
    workers, own = Workers(Rescaled()), np.eye(len(SPEEDS), SIZE)
    worked = np.zeros(len(SPEEDS), int)
    for _ in range(2000):
        worker = int(workers.random.choice(len(SPEEDS), p=SPEEDS / SPEEDS.sum()))
        before = workers.shard.parameters[worker]
        workers.shard.receive_push(worker, workers.shard.clock, own[worker])
        assert 0 < (before - workers.shard.parameters[worker]) / RATE <= len(SPEEDS)
        worked[worker] += 1
    rates = -workers.shard.parameters[: len(SPEEDS)] / RATE
    assert rates == pytest.approx(np.full(len(SPEEDS), rates.mean()), rel=0.1)
    # In proportion to the times, which are 1 / speed, with a mean of 1 over the workers.
    factors = rates / worked
    assert factors == pytest.approx(len(SPEEDS) / SPEEDS / (1 / SPEEDS).sum(), rel=0.1)


def test_the_rate_of_a_push_is_the_same_in_all_its_chunks():
    """Whatever arrives between its chunks."""
    workers, one = Workers(Rescaled()), np.ones(SIZE)
    shard = workers.shard
    for worker in (0, 0, 0, 1, 0):
        shard.receive_push(worker, shard.clock, one)
    before = shard.parameters.copy()
    shard.receive_chunk(1, 2, shard.clock, one[6:])
    shard.receive_push(0, shard.clock, np.zeros(SIZE))
    shard.receive_chunk(1, 1, shard.clock, one[3:6])
    shard.receive_chunk(1, 0, shard.clock, one[:3])
    made = before - shard.parameters
    assert made == pytest.approx(np.full(SIZE, made[0]), rel=1e-12)
    # The times of workers 0 and 1 are the mean of 1, 1 and 2, and 2.
    assert made[0] == pytest.approx(RATE * 2 / ((4 / 3 + 2) / 2), rel=1e-12)


def test_ringmaster_is_downpour_with_a_bound_of_the_delay():
    """Algorithm 4 of the paper: gradients with a delay of R and more are discarded."""
    bound = 3
    workers, x, clock, discarded = Workers(Downpour(max_staleness=bound - 1)), np.zeros(SIZE), 0, 0
    for _ in range(300):
        _, gradient, computed_at = workers.push()
        if clock - computed_at < bound:
            x, clock = x - RATE * gradient, clock + 1
        else:
            discarded += 1
        assert np.array_equal(workers.shard.parameters, x)
    assert discarded == workers.shard.dropped
    assert 30 < discarded < 270


class Uneven:
    """A model of which the replica `number` of an engine has the center CENTERS[number]."""

    engine = None

    def __init__(self):
        self.parameters = np.zeros(SIZE)

    def loss_and_gradient(self, batch: Batch):
        number = next(each.number for each in self.engine.replicas if each.parameters is self.parameters)
        return 0.0, self.parameters - CENTERS[number]


#: The first of three replicas is 5 times slower than the third, the second twice as fast as the first.
TIMES = Times(Constant(1.0), slow={0: 5.0, 1: 2.5})
REPLICAS, WEIGHTS = 3, np.array([1 / 5, 1 / 2.5, 1.0])


def settled(lab, algorithm, rate, pushes, servers=2, times=TIMES):
    """Return the parameters after a number of pushes, before the last round, which the end cuts off."""
    data, found = np.zeros((pushes * lab.batch, 1), np.float32), np.empty(SIZE)

    def watch(shard, *about):
        if shard.pushes == pushes - 10:
            found[slice(*shard.range)] = shard.parameters

    model = Uneven()
    engine = model.engine = lab.engine(
        (model, ArraySplit(data, data)), algorithm, Sgd(rate), servers, REPLICAS, epochs=1, times=times, chunk=2,
        on_applied=watch,
    )  # fmt: skip
    totals = engine.run()
    assert (totals.batches, totals.shards.dropped) == (pushes, 0)
    return found


def test_downpour_settles_at_the_mean_by_speed_and_rescaled_at_the_mean(lab):
    mean, by_speed = CENTERS[:REPLICAS].mean(axis=0), WEIGHTS @ CENTERS[:REPLICAS] / WEIGHTS.sum()
    assert np.abs(mean - by_speed).max() > 0.3
    errors = []
    for rate, pushes in ((0.1, 300), (0.02, 900)):
        assert np.abs(settled(lab, Downpour(), rate, pushes) - by_speed).max() < 2 * rate
        errors.append(np.abs(settled(lab, Rescaled(), rate, pushes) - mean).max())
        assert errors[-1] < 2 * rate
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("times", [TIMES, Times(Exponential(1.0), slow={0: 5.0, 1: 2.5}, latency=Uniform(0.0, 0.3))])
def test_ringleader_settles_at_the_mean_exactly(lab, servers, times):
    found = settled(lab, Ringleader(), 0.1, 600, servers, times)
    assert found == pytest.approx(CENTERS[:REPLICAS].mean(axis=0), abs=1e-9)


@pytest.mark.parametrize("rule", [Sgd(0.05), Adagrad(0.05)])
@pytest.mark.parametrize("keys", [{}, {"n_push": 3, "n_fetch": 2, "rate": 0.02}])
def test_with_equal_speeds_rescaled_is_downpour_bit_for_bit(lab, least_squares, rule, keys):
    options = {"rule": rule, "replicas": 4, "chunk": 3, "times": Times(Constant(1.0), Constant(0.1))}
    downpour, rescaled = (lab.trained(least_squares(), each(**keys), **options) for each in (Downpour, Rescaled))
    assert rescaled.tobytes() == downpour.tobytes()
    options["times"] = Times(Constant(1.0), slow={0: 5.0})
    downpour, rescaled = (lab.trained(least_squares(), each(**keys), **options) for each in (Downpour, Rescaled))
    assert rescaled.tobytes() != downpour.tobytes()
