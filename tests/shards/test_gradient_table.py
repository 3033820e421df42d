"""Policies that keep state of each worker: the table of Ringleader ASGD, and rescaled rates."""

import numpy as np
import pytest

from mpidl.algorithms import Rescaled, Ringleader
from mpidl.parameters import Range
from mpidl.rules import Adam, Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from uneven_workers import CENTERS, RATE, SIZE, SPEEDS, Workers


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


def test_statistics_take_one_step_in_a_round_of_several_updates():
    scheduled = ScheduledRule(Sgd(1.0), statistics=[Range(2, 4)])
    shard = Shard(Range(0, 4), np.zeros(4), scheduled, Ringleader().shard_policy(2), 4)
    for worker in (0, 1, 0):
        shard.receive_push(worker, shard.clock, np.ones(4))
    assert shard.clock == 2
    assert shard.parameters.tolist() == [-2, -2, -1, -1]


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


def test_a_worker_that_comes_back_counts_as_a_new_one():
    shard, one = Workers(Rescaled()).shard, np.ones(SIZE)
    for worker in (0, 1, 1, 1, 1, 1, 0, 1):
        shard.receive_push(worker, shard.clock, one)
    shard.remove_worker(0)
    shard.add_worker(0)
    before = shard.parameters.copy()
    shard.receive_push(0, shard.clock, one)
    # The first push of a worker counts as 4 for as many workers; the mean of worker 1 is that of 1, 1, 1, 1 and 2.
    assert before - shard.parameters == pytest.approx(np.full(SIZE, RATE * 4 / ((4 + 1.2) / 2)), rel=1e-12)
