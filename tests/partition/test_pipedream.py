"""PipeDream on threads: each stage's updates are those of the paper's formula."""

from collections import Counter

import numpy as np
import pytest

from hand_plans import batch_for, network, uncut
from mpidl.errors import UsageError
from mpidl.nn import Dense, Network
from mpidl.nn.losses import Regularisation
from mpidl.partition import threads
from mpidl.partition.network import CutNetwork
from mpidl.partition.pipedream import PipeDream
from mpidl.partition.planner import make_plan

RATE = 0.1


def piped(net, plan, batches, runs):
    """Return the losses on each rank, and the whole vector in the order of the uncut network."""

    def rank(group):
        whole = Network(net.layers, net.input_shape, dtype="float64", seed=3, regularisation=net.regularisation)
        model = PipeDream(whole, plan, group.rank)

        def update(parameters, gradient):
            parameters -= RATE * gradient

        losses = [model.train(group, batches[start::runs], update) for start in range(runs)]
        return np.concatenate(losses), model.parameters

    results = threads.run(plan.partitions, rank)
    return [losses for losses, _ in results], uncut(plan, np.concatenate([own for _, own in results]))


def by_the_formula(net, plan, batches):
    """Return the same of ``w(t + 1) = w(t) - rate grad f(w_1(t - n + 1), ..., w_n(t))``, section 3.3."""
    size = plan.partitions // plan.stages
    stage = uncut(plan, np.repeat(np.arange(plan.partitions) // size, [own.size for own in plan.slices]).astype(float))
    versions = [net.parameters.copy()]
    losses = []
    for t, batch in enumerate(batches):
        ahead = (plan.stages - 1 - stage).astype(int)
        net.parameters[:] = np.choose(ahead, [versions[max(0, t - each)] for each in range(plan.stages)])
        loss, gradient = net.loss_and_gradient(batch)
        losses.append(loss)
        versions.append(versions[-1] - RATE * gradient)
    return losses, versions[-1]


@pytest.mark.parametrize(("partitions", "stages"), [(1, 1), (2, 2), (3, 3), (4, 4), (4, 2), (6, 3)])
def test_each_stage_goes_back_with_the_weights_that_it_went_forward_with(partitions, stages):
    layers = [Dense(7, "tanh"), Dense(6, "sigmoid"), Dense(8, "tanh"), Dense(5, "gelu"), Dense(3)]
    net = network(layers, (4,), regularisation=Regularisation(l2=0.1))
    plan = make_plan(layers, (4,), partitions, batch=8, stages=stages)
    batches = [batch_for(net, samples, seed) for seed, samples in enumerate([5, 8, 1, 8, 7, 11, 3, 8, 12])]
    found, vector = piped(net, plan, batches, 1)
    losses, expected = by_the_formula(net, plan, batches)
    for own in found:
        np.testing.assert_allclose(own, losses, rtol=1e-12)
    np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-13)
    if stages > 1:
        serial = network(layers, (4,), regularisation=Regularisation(l2=0.1))
        for batch in batches:
            serial.parameters[:] -= RATE * serial.loss_and_gradient(batch)[1]
        assert np.abs(serial.parameters - expected).max() > 1e-6


def test_a_stage_keeps_as_many_versions_as_minibatches_pass_through_it_at_once(monkeypatch):
    """Section 3.3: the first of K stages stashes K versions of its weights, the last one has only its own."""
    kept = Counter()

    class Counted(CutNetwork):
        def __init__(self, network, plan, rank):
            kept[rank] += 1
            super().__init__(network, plan, rank)

    monkeypatch.setattr("mpidl.partition.pipedream.CutNetwork", Counted)
    net = network([Dense(7, "tanh"), Dense(6), Dense(8), Dense(3)], (4,))
    plan = make_plan(net.layers, (4,), 4, batch=8, stages=4)
    for rank in range(4):
        PipeDream(net, plan, rank)
    assert kept == {0: 4, 1: 3, 2: 2, 3: 1}


def test_the_end_of_a_call_is_a_flush():
    net = network([Dense(7, "tanh"), Dense(3)], (4,))
    plan = make_plan(net.layers, (4,), 2, batch=8, stages=2)
    batch = batch_for(net, 8)
    _, vector = piped(net, plan, [batch] * 4, 4)
    for _ in range(4):
        net.parameters[:] -= RATE * net.loss_and_gradient(batch)[1]
    np.testing.assert_allclose(vector, net.parameters, rtol=0, atol=1e-13)


def test_a_norm_of_all_stages_is_an_error():
    net = network([Dense(7, "tanh"), Dense(3)], (4,), regularisation=Regularisation(clip=1.0))
    plan = make_plan(net.layers, (4,), 2, batch=8, stages=2)
    with pytest.raises(UsageError, match=r"model\.clip: PipeDream has no norm"):
        PipeDream(net, plan, 0)
