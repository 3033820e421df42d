"""Pipelines on threads: with any schedule, a minibatch's gradient is that of the uncut network."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import threads
from hand_plans import PLANS, batch_for, by_samples, check_training, cut, network, trained, uncut
from mpidl.errors import UsageError
from mpidl.nn import (
    Add,
    BatchNormalisation,
    Conv2d,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNormalisation,
    LocallyConnected2d,
    MaxPool2d,
    Network,
)
from mpidl.nn.losses import Regularisation
from mpidl.parameters.ranges import split
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan
from mpidl.partition.schedules import SCHEDULES
from rows import in_turn

schedules = pytest.mark.parametrize("schedule", SCHEDULES)


def dense():
    layers = [Dense(11, "tanh"), Dense(9, "sigmoid"), LayerNormalisation(), Dropout(0.3), Dense(7, "gelu"), Dense(5)]
    return network(layers, (6,), regularisation=Regularisation(l2=0.1, clip=0.4))


def images():
    layers = [
        Conv2d(4, 3, "tanh", padding=1),
        MaxPool2d(2),
        LocallyConnected2d(3, 2, "tanh"),
        Conv2d(3, 2, "relu"),
        Flatten(),
        Dropout(0.2),
        Dense(6, "tanh"),
        Dense(4),
    ]
    return network(layers, (11, 9, 2))


def branches():
    """Return a network of which a value goes to stages that aren't neighbours."""
    layers = [
        Dense(8, "tanh", name="a"),
        Dense(8, "tanh", name="b"),
        Dense(8, "sigmoid", name="c"),
        Add("tanh", inputs=("a", "c"), name="sum"),
        Dense(8, "tanh", inputs=("sum",), name="d"),
        Add("identity", inputs=("a", "b", "d"), name="all"),
        Dense(3),
    ]
    return network(layers, (5,))


NETWORKS = [dense, images, branches]


def piped(net, plan, rank, schedule, micro_batches):
    whole = Network(
        net.layers, net.input_shape, loss=net.loss, dtype="float64", seed=3, regularisation=net.regularisation
    )
    return CutNetwork(whole, plan, rank, schedule=schedule, micro_batches=micro_batches)


def gradients(net, plan, batch, schedule, micro_batches):
    """Return the loss on each rank, and the whole gradient in the order of the uncut network."""

    def rank(group):
        model = piped(net, plan, group.rank, schedule, micro_batches)
        model.bind(group)
        loss, gradient = model.loss_and_gradient(batch)
        return loss, gradient.copy()

    results = threads.run(plan.partitions, rank)
    return [loss for loss, _ in results], uncut(plan, np.concatenate([gradient for _, gradient in results]))


def check(net, plan, batch, schedule, micro_batches):
    """Check that all ranks have the loss, and together the gradient, of the uncut network."""
    losses, found = gradients(net, plan, batch, schedule, micro_batches)
    loss, expected = net.loss_and_gradient(batch)
    assert losses == [pytest.approx(loss, rel=1e-12)] * plan.partitions
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


CUTS = [(2, 2), (3, 3), (4, 4), (4, 2), (6, 3), (2, 1), (1, 1)]


@pytest.mark.parametrize(
    ("planned", "cut_into", "schedule"),
    [(*each, schedule) for each, schedule in in_turn(product(NETWORKS, CUTS), [(name,) for name in SCHEDULES])],
)
def test_training_is_that_of_the_uncut_network(planned, cut_into, schedule):
    net, (partitions, stages) = planned(), cut_into
    plan = make_plan(net.layers, net.input_shape, partitions, batch=8, stages=stages)
    batches = [batch_for(net, samples, seed) for seed, samples in enumerate([11, 7, 11, 2, 1, 12])]

    def rank(group):
        return trained(piped(net, plan, group.rank, schedule, 5), group, batches)

    check_training(net, plan, threads.run(partitions, rank), batches)


@given(
    st.sampled_from(NETWORKS),
    st.sampled_from([*SCHEDULES]),
    st.sampled_from([(2, 2), (3, 3), (4, 4), (4, 2), (6, 2)]),
    st.integers(1, 9),
    st.integers(1, 13),
)
def test_any_number_of_micro_batches_has_the_full_batchs_gradient(planned, schedule, cut_into, micro_batches, samples):
    net, (partitions, stages) = planned(), cut_into
    plan = make_plan(net.layers, net.input_shape, partitions, batch=samples, stages=stages)
    check(net, plan, batch_for(net, samples), schedule, micro_batches)


@pytest.mark.parametrize(("planned", "schedule"), in_turn(PLANS, [(name,) for name in SCHEDULES]))
def test_plans_made_by_hand_pass_micro_batches_too(planned, schedule):
    net, plan = planned(3)
    if any(layer.statistics for layer in net.layers):
        pytest.skip("statistics of micro-batches are others")
    check(net, plan, batch_for(net, 10), schedule, 4)


@schedules
def test_a_rank_without_samples_of_a_micro_batch_adds_nothing(schedule):
    net, plan = by_samples(3)
    batches = [batch_for(net, samples, samples) for samples in (9, 4, 2)]

    def rank(group):
        return trained(piped(net, plan, group.rank, schedule, 4), group, batches)

    check_training(net, plan, threads.run(3, rank), batches)


@schedules
@pytest.mark.parametrize(("partitions", "stages"), [(2, 2), (4, 2), (3, 1)])
def test_batch_normalisation_has_the_statistics_of_each_micro_batch(partitions, stages, schedule):
    net = network([Dense(7, "tanh"), BatchNormalisation("tanh"), Dense(6), BatchNormalisation(), Dense(3)], (4,))
    plan = make_plan(net.layers, net.input_shape, partitions, batch=11, stages=stages)
    batch = batch_for(net, 11)
    loss, expected = 0.0, np.zeros(net.layout.size)
    for part in split(11, 3):
        own = batch._replace(inputs=batch.inputs[slice(*part)], targets=batch.targets[slice(*part)])
        one, gradient = net.loss_and_gradient(own)
        loss += part.size / 11 * one
        expected += part.size / 11 * gradient
    losses, found = gradients(net, plan, batch, schedule, 3)
    assert losses == [pytest.approx(loss, rel=1e-12)] * partitions
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@schedules
def test_ids_pass_as_they_are(schedule):
    net = network([Embedding(13, 4), Dense(7, "tanh"), Dense(3)], (5,))
    plan = make_plan(net.layers, net.input_shape, 2, batch=9, stages=2)
    ids = np.random.default_rng(1).integers(0, 13, (9, 5))
    check(net, plan, batch_for(net, 9)._replace(inputs=ids), schedule, 4)


@schedules
def test_single_precision_inputs_are_converted_for_each_micro_batch(schedule):
    net = dense()
    plan = make_plan(net.layers, net.input_shape, 2, batch=9, stages=2)
    batch = batch_for(net, 9)
    check(net, plan, batch._replace(inputs=batch.inputs.astype("float32")), schedule, 4)


@schedules
def test_evaluations_between_gradients_change_nothing(schedule):
    net = images()
    plan = make_plan(net.layers, net.input_shape, 2, batch=9, stages=2)
    batch, larger = batch_for(net, 9), batch_for(net, 20, 1)

    def rank(group):
        model = piped(net, plan, group.rank, schedule, 4)
        model.bind(group)
        first = model.loss_and_gradient(batch)[1].copy()
        figures = model.evaluate(larger)
        return first, model.loss_and_gradient(batch)[1].copy(), figures

    for first, second, _ in (results := threads.run(2, rank)):
        np.testing.assert_array_equal(first, second)
    assert results[0][2].loss == pytest.approx(net.evaluate(larger).loss, rel=1e-12)


def test_a_pipeline_of_one_micro_batch_has_the_bits_of_a_pass():
    net = dense()
    plan = make_plan(net.layers, net.input_shape, 2, batch=9, stages=2)
    batch = batch_for(net, 9)
    found = [gradients(net, plan, batch, schedule, 1) for schedule in SCHEDULES]
    for losses, gradient in found:
        assert losses == found[0][0]
        np.testing.assert_array_equal(gradient, found[0][1])


def test_memory_follows_from_the_micro_batches_that_are_kept():
    net = network([Dense(9, "tanh"), Dense(8, "gelu"), Dense(7)], (6,))
    plan = make_plan(net.layers, net.input_shape, 3, batch=24, stages=3)

    def needed(schedule, micro_batches, stage, samples=24):
        return piped(net, plan, stage, schedule, micro_batches).activation_bytes(samples)

    whole = [needed("gpipe", 1, stage) for stage in range(3)]
    for stage in range(3):
        sums = needed("gpipe", 2, stage, 2) - 2 * needed("gpipe", 1, stage, 1)
        kept = {name: needed(name, 8, stage) - sums for name in SCHEDULES}
        assert kept["gpipe"] == whole[stage]
        assert kept["zero_bubble"] == whole[stage] * 3 // 8
        assert kept["one_forward_one_backward"] == whole[stage] * (3 - stage) // 8


@schedules
def test_a_value_crosses_a_cut_once_for_each_sample(schedule, monkeypatch):
    net = dense()
    plan = make_plan(net.layers, net.input_shape, 2, batch=9, stages=2)
    sent = Counter()
    original = threads.ThreadGroup.send

    def counting(group, to, array, tag):
        message = original(group, to, array, tag)

        def start():
            sent[group.rank, to] += array.size
            message.start()

        return message._replace(start=start)

    monkeypatch.setattr(threads.ThreadGroup, "send", counting)
    gradients(net, plan, batch_for(net, 9), schedule, 4)
    (movement,) = [each.elements for each in plan.traffic(9) if each.elements.any()]
    assert sent == {(0, 1): movement[0, 1], (1, 0): movement[0, 1]}


def test_a_stage_that_fails_ends_the_others():
    net = dense()
    plan = make_plan(net.layers, net.input_shape, 3, batch=8, stages=3)
    batch = batch_for(net, 8)
    wrong = batch._replace(targets=np.array([0, 0, 0, 0, 0, 0, 0, 99]))
    with pytest.raises(UsageError, match="labels 0 to 99, the last layer has 5 units"):
        gradients(net, plan, wrong, "one_forward_one_backward", 4)


def test_what_a_user_got_wrong():
    net, plan = PLANS[0](2)
    with pytest.raises(UsageError, match="schedule: unknown name 'g_pipe', did you mean 'gpipe'"):
        piped(net, plan, 0, "g_pipe", 2)
    with pytest.raises(UsageError, match="micro_batches: 0, expected at least 1"):
        piped(net, plan, 0, "gpipe", 0)


def test_on_another_package_it_has_the_same_schedule():
    net, plan = PLANS[0](2)
    model = piped(net, plan, 0, "gpipe", 5).on(np)
    assert model.activation_bytes(5) == piped(net, plan, 0, "gpipe", 5).activation_bytes(5)
    assert model.activation_bytes(5) > cut(net, plan, 0).activation_bytes(1)
