"""Functions of JAX by stages, on threads: the gradient is that of the whole sequence."""

import doctest

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import mpidl.jax.sequence
import threads
from jax_functions import cross_entropy, mlp, plain
from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.jax import JaxModel, JaxSequence
from mpidl.nn.model import Evaluation
from mpidl.partition.schedules import SCHEDULES
from mpidl.partition.section import Section
from mpidl.partition.sections import sections_of

pytestmark = pytest.mark.usefixtures("float64")


def dense(parameters, inputs):
    return inputs @ parameters["weight"] + parameters["bias"]


def tanh(_, inputs):
    return jnp.tanh(inputs)


def dropout(_, inputs, key):
    return inputs if key is None else inputs * jax.random.bernoulli(key, 0.7, inputs.shape) / 0.7


def sequence(last=dense, **options):
    random = np.random.default_rng(3)
    sizes = [(64, 9), (9, 8), (8, 7), (7, 10)]
    trees = [{"weight": random.normal(0, 0.3, each), "bias": random.normal(0, 0.3, each[1])} for each in sizes]
    functions, parameters = [], []
    for tree in trees:
        functions += [dense, tanh]
        parameters += [tree, None]
    return JaxSequence([*functions[:-2], last], parameters[:-1], cross_entropy, **options)


def batch_of(samples, seed=0):
    random = np.random.default_rng([seed, samples])
    return Batch(random.normal(size=(samples, 64)), random.integers(0, 10, samples), number=seed)


def on_ranks(stages, work, schedule="one_forward_one_backward", make=sequence, micro_batches=4):
    whole = make()
    plan = sections_of(whole, stages)

    def rank(group):
        section = Section(whole, plan, group.rank, schedule=schedule, micro_batches=micro_batches)
        section.bind(group)
        found = work(section)
        section.unbind()
        return found

    return threads.run(stages, rank)


def test_examples():
    result = doctest.testmod(mpidl.jax.sequence)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 3])
def test_training_is_that_of_the_whole_sequence(stages, schedule):
    batches = [batch_of(samples, seed) for seed, samples in enumerate([8, 8])]

    def trained(model):
        losses = []
        for batch in batches:
            loss, gradient = model.loss_and_gradient(batch)
            losses.append(loss)
            model.parameters[:] -= 0.1 * gradient
        return losses, model.parameters.copy()

    results = on_ranks(stages, trained, schedule, micro_batches=3)
    losses, expected = trained(sequence())
    for own, _ in results:
        np.testing.assert_allclose(own, losses, rtol=1e-10)
    np.testing.assert_allclose(np.concatenate([vector for _, vector in results]), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stages", [1, 2])
def test_evaluations_and_outputs_are_on_rank_0(stages):
    batch, whole = batch_of(13), sequence()
    expected = whole.evaluate(batch)
    (first, answer), *others = on_ranks(stages, lambda section: (section.evaluate(batch), section.outputs(batch)))
    assert first[:2] == (pytest.approx(expected.loss, rel=1e-12), expected.correct)
    np.testing.assert_allclose(first.outputs, expected.outputs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(answer, expected.outputs, rtol=0, atol=1e-12)
    assert others == [(Evaluation(0.0, 0), None)] * (stages - 1)


def test_one_micro_batch_has_the_whole_ones_random_numbers():
    def make():
        random = np.random.default_rng(3)
        weights = [{"weight": random.normal(size=each), "bias": np.zeros(each[1])} for each in [(64, 20), (20, 10)]]
        return JaxSequence([dense, dropout, dense], [weights[0], None, weights[1]], cross_entropy, seed=5)

    batch = batch_of(16, 2)
    losses = on_ranks(2, lambda section: section.loss_and_gradient(batch)[0], "gpipe", make, 1)
    assert losses == [losses[0]] * 2
    again = on_ranks(2, lambda section: section.loss_and_gradient(batch)[0], "zero_bubble", make, 1)
    assert again == losses
    other = on_ranks(2, lambda section: section.loss_and_gradient(batch._replace(number=3))[0], "gpipe", make, 1)
    assert other != losses


def test_functions_without_parameters_go_with_those_before_them():
    plan = sections_of(sequence(), 3)
    assert [tuple(run) for run in plan.runs] == [(0, 2), (2, 4), (4, 7)]
    assert plan.layout == sequence().layout


def test_what_trains_whole_says_so():
    with pytest.raises(UsageError, match=r"topology\.stages: 2, but a function of JAX can't be cut, expected 1"):
        sections_of(JaxModel(mlp(dtype=np.float64), plain), 2)
    with pytest.raises(UsageError, match="5 pytrees for 4 functions, expected one for each"):
        JaxSequence([dense] * 4, [None] * 5, cross_entropy)
