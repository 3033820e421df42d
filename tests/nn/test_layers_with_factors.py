"""The factors of a network's gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.data.batch import Batch
from mpidl.nn import Network
from mpidl.nn.layers import Dense, LayerNormalisation
from mpidl.nn.regularisation import Regularisation


def network(units=(7, 4), **options):
    layers = [Dense(units[0], activation="tanh"), LayerNormalisation(), *(Dense(n, bias=n % 2 == 0) for n in units[1:])]
    return Network([*layers, Dense(3)], (2, 5), dtype="float64", **options)


def batch(samples=6):
    random = np.random.default_rng(samples)
    return Batch(random.normal(size=(samples, 2, 5)), random.integers(0, 3, samples))


@settings(max_examples=30, deadline=None)
@given(units=st.lists(st.integers(1, 9), min_size=1, max_size=4), samples=st.integers(1, 9), data=st.data())
def test_their_product_is_the_gradient_of_the_weight(units, samples, data):
    model = network(units)
    _, expected = network(units).loss_and_gradient(batch(samples))
    matrices = {each.start: each for each in model.matrices()}
    assert len(matrices) == len(units) + 1
    factored = data.draw(st.sets(st.sampled_from(sorted(matrices))))
    model._tensors.gradient.fill(np.nan)
    seen = set()

    def take(gradient, start, factors):
        assert factors.samples == samples
        if factors.inputs is not None:
            seen.add(start)
            product = factors.inputs.T @ factors.output_gradient
            assert np.array_equal(product.reshape(-1), expected[slice(*matrices[start].range)])

    _, gradient = model.wait_free_gradient(batch(samples), take, factored)
    assert seen == set(matrices)
    for start in matrices:
        own = slice(*matrices[start].range)
        assert np.isnan(gradient[own]).all() if start in factored else np.array_equal(gradient[own], expected[own])
        expected[own] = gradient[own] = 0
    assert np.array_equal(gradient, expected)
    # What is left out once is computed by the next call.
    _, expected = network(units).loss_and_gradient(batch(samples))
    assert np.array_equal(model.loss_and_gradient(batch(samples))[1], expected)


@pytest.mark.parametrize("regularisation", [Regularisation(l2=0.1), Regularisation(clip=1.0)])
def test_a_gradient_that_is_changed_afterwards_has_none(regularisation):
    assert network(regularisation=regularisation).matrices() == []


def test_a_loss_that_is_not_finite_leaves_a_whole_gradient():
    model, calls = network(), []
    inputs = batch()._replace(inputs=np.full((6, 2, 5), np.nan))
    model._tensors.gradient.fill(0)
    _, gradient = model.wait_free_gradient(
        inputs, lambda *_: calls.append(1), {each.start for each in model.matrices()}
    )
    assert not calls
    assert np.isnan(gradient).any()
