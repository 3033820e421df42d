"""Algorithms for workers with different data and speeds, on f_i(x) = (x - c_i)^2 / 2 with c_i of each worker's own."""

import numpy as np
import pytest

from mpidl.algorithms import Downpour, Rescaled, Ringleader, Softsync
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.rules import Adagrad, Adam, Momentum, Nesterov, Rmsprop, Sgd
from uneven_workers import CENTERS, RATE, SIZE, Workers


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
MEAN, BY_SPEED = CENTERS[:REPLICAS].mean(axis=0), WEIGHTS @ CENTERS[:REPLICAS] / WEIGHTS.sum()


def settled(lab, algorithm, rule, pushes, servers=2, times=TIMES, mean_of=1):
    """Return the mean parameters of some pushes, the last before the last round, which the end cuts off."""
    data, path = np.zeros((pushes * lab.batch, 1), np.float32), np.zeros((pushes + 1, SIZE))

    def watch(shard, *about):
        path[shard.pushes, slice(*shard.range)] = shard.parameters

    model = Uneven()
    engine = model.engine = lab.engine(
        (model, ArraySplit(data, data)), algorithm, rule, servers, REPLICAS, epochs=1, times=times, chunk=2,
        on_applied=watch,
    )  # fmt: skip
    totals = engine.run()
    assert (totals.batches, totals.shards.dropped) == (pushes, 0)
    return path[: pushes - 9][-mean_of:].mean(axis=0)


def test_downpour_settles_at_the_mean_by_speed_and_rescaled_at_the_mean(lab):
    assert np.abs(MEAN - BY_SPEED).max() > 0.3
    errors = []
    for rate, pushes in ((0.1, 300), (0.02, 900)):
        assert np.abs(settled(lab, Downpour(), Sgd(rate), pushes) - BY_SPEED).max() < 2 * rate
        errors.append(np.abs(settled(lab, Rescaled(), Sgd(rate), pushes) - MEAN).max())
        assert errors[-1] < 2 * rate
    assert errors[1] < errors[0] / 3


#: Rules whose states, from fast workers' gradients for the most part, are in the step by each gradient.
WITH_STATES = [Momentum(0.01), Nesterov(0.01), Adagrad(0.3), Rmsprop(0.02, 0.99), Adam(0.03)]


@pytest.mark.parametrize("algorithm", [Rescaled(), Ringleader()])
@pytest.mark.parametrize("rule", WITH_STATES)
def test_rescaled_and_ringleader_settle_at_the_mean_with_every_rule(lab, algorithm, rule):
    found = settled(lab, algorithm, rule, 500, servers=1, mean_of=200)
    assert found == pytest.approx(MEAN, abs=0.04)


@pytest.mark.parametrize("rule", [*WITH_STATES[:2], Adam(0.03)])
def test_softsync_settles_with_every_rule_where_it_does_with_sgd(lab, rule):
    """Which is nearer to the fast workers' data than downpour: with a rate for each gradient by its staleness."""
    by_sgd, found = (settled(lab, Softsync(n=3), each, 500, servers=1, mean_of=200) for each in (Sgd(0.1), rule))
    assert np.abs(by_sgd - BY_SPEED).max() > 0.1
    assert found == pytest.approx(by_sgd, abs=0.04)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("times", [TIMES, Times(Exponential(1.0), slow={0: 5.0, 1: 2.5}, latency=Uniform(0.0, 0.3))])
def test_ringleader_settles_at_the_mean_exactly(lab, servers, times):
    found = settled(lab, Ringleader(), Sgd(0.1), 600, servers, times)
    assert found == pytest.approx(MEAN, abs=1e-9)


@pytest.mark.parametrize("rule", [Sgd(0.05), Adagrad(0.05), Nesterov(0.01), Adam(0.01)])
@pytest.mark.parametrize("keys", [{}, {"n_push": 3, "n_fetch": 2, "rate": 0.02}])
def test_with_equal_speeds_rescaled_is_downpour_bit_for_bit(lab, least_squares, rule, keys):
    options = {"rule": rule, "replicas": 4, "chunk": 3, "times": Times(Constant(1.0), Constant(0.1))}
    downpour, rescaled = (lab.trained(least_squares(), each(**keys), **options) for each in (Downpour, Rescaled))
    assert rescaled.tobytes() == downpour.tobytes()
    options["times"] = Times(Constant(1.0), slow={0: 5.0})
    downpour, rescaled = (lab.trained(least_squares(), each(**keys), **options) for each in (Downpour, Rescaled))
    assert rescaled.tobytes() != downpour.tobytes()
