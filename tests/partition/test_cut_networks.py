"""Networks cut over threads do what uncut ones do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import threads
from hand_plans import (
    PLANS,
    Cutter,
    batch_for,
    by_samples,
    check_training,
    convolved,
    cut,
    dense_by_inputs,
    dense_by_units,
    in_stages,
    network,
    trained,
    uncut,
    unlike,
)
from mpidl.errors import UsageError
from mpidl.nn import BatchNormalisation, Dense, MeanSquaredError, Network
from mpidl.nn.losses import Regularisation
from mpidl.nn.model import Evaluation
from mpidl.parameters import Range
from mpidl.partition.network import CutNetwork
from rows import in_turn

PARTS = [1, 2, 3, 4, 6]


def on_ranks(net, plan, work):
    """Return what `work` makes of each rank's part of a network, bound to a group of threads."""

    def rank(group):
        model = cut(net, plan, group.rank)
        model.bind(group)
        return work(model)

    return threads.run(plan.partitions, rank)


@pytest.mark.parametrize(("planned", "parts"), in_turn(PLANS, [(parts,) for parts in PARTS], each=2))
def test_twenty_steps_are_those_of_the_uncut_network(planned, parts):
    net, plan = planned(parts)
    batches = [batch_for(net, samples, seed) for seed, samples in enumerate([8, 7, 8, 2, 1] * 4)]
    results = threads.run(parts, lambda group: trained(cut(net, plan, group.rank), group, batches))
    check_training(net, plan, results, batches)


@pytest.mark.parametrize(("planned", "parts"), in_turn(PLANS, [(1,), (3,), (4,), (3,)]))
def test_outputs_and_evaluations_are_those_of_the_uncut_network(planned, parts):
    net, plan = planned(parts)
    weighed = batch_for(net, 7, 1)._replace(weight=4.5)
    for batch in (batch_for(net, 7), weighed, batch_for(net, 2)):
        results = on_ranks(net, plan, lambda model, batch=batch: (model.predict(batch.inputs), model.evaluate(batch)))
        expected = net.evaluate(batch)
        (outputs, first), *others = results
        np.testing.assert_allclose(outputs, expected.outputs, rtol=0, atol=1e-12)
        np.testing.assert_allclose(first.outputs, expected.outputs, rtol=0, atol=1e-12)
        assert first[:2] == (pytest.approx(expected.loss, rel=1e-12), expected.correct)
        assert others == [(None, Evaluation(0.0, 0))] * (parts - 1)


@given(st.sampled_from(PLANS), st.sampled_from(PARTS), st.data())
def test_initial_values_are_those_of_the_uncut_network(planned, parts, data):
    net, plan = planned(parts)
    start = data.draw(st.integers(0, plan.layout.size))
    stop = data.draw(st.integers(start, plan.layout.size))
    models = [cut(net, plan, rank) for rank in range(parts)]
    whole = np.concatenate([model.parameters for model in models])
    assert np.array_equal(uncut(plan, whole), net.initial(Range(0, net.layout.size)))
    assert np.array_equal(models[0].initial(Range(start, stop)), whole[start:stop])


@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_the_norm_that_is_clipped_is_of_all_that_is_trained(clip):
    net, plan = unlike(3)
    regularisation = Regularisation(l2=0.3, clip=clip)
    net = Network(net.layers, net.input_shape, dtype="float64", seed=3, regularisation=regularisation)
    net.freeze(["0-dense/weight"])
    batch = batch_for(net, 7)

    def gradient(model):
        model.freeze(["0-dense/weight"])
        return model.loss_and_gradient(batch)[1].copy()

    found = np.concatenate(on_ranks(net, plan, gradient))
    np.testing.assert_allclose(uncut(plan, found), net.loss_and_gradient(batch)[1], rtol=0, atol=1e-13)


def test_losses_of_shares_weigh_by_their_samples():
    _, plan = by_samples(3)
    loss = MeanSquaredError()
    random = np.random.default_rng(1)
    net = Network([Dense(8, "tanh"), Dense(6)], (7,), dtype="float64", loss=loss)
    for samples in (1, 2, 7):
        batch = batch_for(net, samples)._replace(targets=random.normal(size=(samples, 6)))
        expected, gradient = net.loss_and_gradient(batch)

        def work(group, batch=batch):
            model = CutNetwork(Network(net.layers, (7,), dtype="float64", loss=loss), plan, group.rank)
            model.bind(group)
            return model.loss_and_gradient(batch), model.evaluate(batch).correct

        results = threads.run(3, work)
        assert [each for (each, _), _ in results] == [pytest.approx(expected, rel=1e-13)] * 3
        found = uncut(plan, np.concatenate([each for (_, each), _ in results]))
        np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-13)
        assert np.isnan(results[0][1])


def test_ranges_of_statistics_are_of_the_whole_vector():
    net, plan = unlike(4)
    model = cut(net, plan, 1)
    marks = np.zeros(plan.layout.size)
    for part in model.statistics:
        marks[slice(*part)] = 1
    expected = np.zeros(net.layout.size)
    for part in net.statistics:
        expected[slice(*part)] = 1
    assert np.array_equal(uncut(plan, marks), expected)
    assert 0 < expected.sum() < expected.size


def test_a_rank_computes_with_the_vector_that_it_is_given():
    net, plan = convolved(3)
    batch = batch_for(net, 5)

    def replaced(model):
        model.loss_and_gradient(batch)
        model.parameters = 0.5 * model.parameters
        first = model.loss_and_gradient(batch)[0]
        model.parameters *= 2
        return first, model.loss_and_gradient(batch)[0]

    expected = net.loss_and_gradient(batch)[0]
    net.parameters *= 0.5
    halved = net.loss_and_gradient(batch)[0]
    for found in on_ranks(net, plan, replaced):
        assert found == (pytest.approx(halved, rel=1e-12), pytest.approx(expected, rel=1e-12))


def test_bound_again_and_on_another_package_it_computes_the_same():
    net, plan = dense_by_units(2)
    batch = batch_for(net, 5)

    def work(group):
        model = cut(net, plan, group.rank)
        with pytest.raises(RuntimeError, match="bound to a group"):
            model.loss_and_gradient(batch)
        model.bind(group)
        first = model.loss_and_gradient(batch)[1].copy()
        model.unbind()
        with pytest.raises(RuntimeError, match="bound to a group"):
            model.loss_and_gradient(batch)
        model.bind(group)
        other = model.on(np)
        return first, model.loss_and_gradient(batch)[1].copy(), other.loss_and_gradient(batch)[1].copy()

    for first, second, third in threads.run(2, work):
        assert np.array_equal(first, second)
        assert np.array_equal(first, third)


def test_a_group_of_other_ranks_is_an_error():
    net, plan = dense_by_units(2)
    with pytest.raises(ValueError, match="rank 0 of 2, the group's is 0 of 1"):
        threads.run(1, lambda group: cut(net, plan, 0).bind(group))


def test_a_rank_that_fails_ends_the_others():
    net, plan = dense_by_inputs(3)
    batch = batch_for(net, 6)
    wrong = batch._replace(targets=np.array([0, 0, 0, 0, 0, 99]))
    with pytest.raises(UsageError, match="labels 0 to 99, the last layer has 7 units"):
        on_ranks(net, plan, lambda model: model.loss_and_gradient(wrong))
    with pytest.raises(UsageError, match=r"a batch of inputs \(6, 2\), the network takes \(n, 9\)"):
        on_ranks(net, plan, lambda model: model.loss_and_gradient(batch._replace(inputs=batch.inputs[:, :2])))


def test_what_the_whole_network_says_of_itself():
    net, plan = in_stages(3)
    model = cut(net, plan, 1)
    assert model.summaries() == net.summaries()
    with pytest.raises(UsageError, match="the last layer has 4 units, the data 5 classes"):
        model.check_data((5,), 5)
    assert model.layout is plan.layout
    assert [part.size for part in plan.slices] == [cut(net, plan, rank).parameters.size for rank in range(3)]


def test_a_whole_batch_normalisation_between_cut_layers():
    net = network([Dense(4, "tanh"), BatchNormalisation(), Dense(3)], (5,))
    plan = Cutter(net, 2).units(0).whole(1, 1).units(2).plan()
    batch = batch_for(net, 6)
    found = on_ranks(net, plan, lambda model: model.loss_and_gradient(batch)[1].copy())
    expected = net.loss_and_gradient(batch)[1]
    np.testing.assert_allclose(uncut(plan, np.concatenate(found)), expected, rtol=0, atol=1e-13)
