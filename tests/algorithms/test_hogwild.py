"""Hogwild: replicas that share one memory."""

import numpy as np
import pytest

from mpidl.algorithms import Hogwild
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Exponential, Times
from mpidl.rules import Momentum, Sgd


class Disjoint:
    """A model in which sample s has a gradient in its own elements only, s mod groups."""

    def __init__(self, size, groups):
        self.parameters = np.linspace(1, 2, size)
        self._groups = groups

    def loss_and_gradient(self, batch: Batch):
        gradient = np.zeros_like(self.parameters)
        for sample in batch.inputs[:, 0].astype(int):
            own = slice(sample % self._groups, None, self._groups)
            gradient[own] += self.parameters[own] * (1 + sample)
        return 0.0, gradient / len(batch.inputs)


def test_hogwild_with_disjoint_supports_is_serial_for_any_interleaving(lab):
    """One sample a batch in effect: every batch of 8 neighbours in the order of use belongs to one group."""
    rule = Sgd(0.01)

    def problem():
        inputs = np.zeros((96, 1), np.float32)
        for group, indices in enumerate(lab.batches((None, ArraySplit(inputs, inputs)), 1)):
            inputs[indices, 0] = group
        return Disjoint(36, 12), ArraySplit(inputs, inputs)

    expected = lab.serial(problem(), lambda x, gradient: x - 0.01 * gradient(x), epochs=1)
    for seed in range(5):
        found = lab.trained(
            problem(), Hogwild(), rule=rule, servers=1, replicas=6, epochs=1, times=Times(Exponential(1.0)), seed=seed
        )
        assert np.array_equal(found, expected)


def test_hogwild_with_one_replica_is_serial_sgd(lab, least_squares):
    assert np.array_equal(lab.trained(least_squares(), Hogwild(), servers=1), lab.serial(least_squares(), lab.sgd))


def test_staleness_of_hogwild_counts_the_updates_between_read_and_write(lab, tally):
    totals = lab.engine(tally(), Hogwild(), servers=1, replicas=5, epochs=80, times=Times(Exponential(1.0))).run()
    assert totals.staleness.sum / totals.staleness.counts.sum() == pytest.approx(4, rel=0.05)


def test_hogwild_touches_only_what_its_gradient_says(lab, tally):
    """Momentum would go on moving the others."""
    model, split = tally()
    compute = model.loss_and_gradient

    def half(batch):
        loss, gradient = compute(batch)
        gradient[int(batch.inputs[0, 0] < 50) :: 2] = 0
        return loss, gradient

    model.loss_and_gradient = half
    expected, velocity = np.zeros(13), np.zeros(13)
    for indices in lab.batches((model, split)):
        gradient = half(split.gather(indices))[1]
        moved = gradient != 0
        velocity[moved] = 0.5 * velocity[moved] + gradient[moved]
        expected[moved] -= velocity[moved]
    found = lab.trained((model, split), Hogwild(), rule=Momentum(1.0, 0.5), servers=1, times=lab.random_times)
    assert np.array_equal(found, expected)
