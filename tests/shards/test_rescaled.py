"""Rates in proportion to the workers' times."""

import numpy as np
import pytest

from mpidl.algorithms import Rescaled
from uneven_workers import RATE, SIZE, SPEEDS, Workers


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
