"""Gradients against finite differences and the adjoint identity, in float64."""

from itertools import product

import numpy as np
import pytest

from mpidl.data.batch import Batch
from mpidl.nn import ACTIVATIONS, LOSSES, Dense, Network
from rows import in_turn

STEP = 1e-6


def network_and_batch(activation, loss, targets, last="identity"):
    layers = [Dense(7, activation), Dense(5, activation), Dense(3, last)]
    network = Network(layers, (3, 1, 2), loss=LOSSES[loss](), dtype="float64", seed=3)
    random = np.random.default_rng(5)
    network.parameters[:] = random.normal(size=network.layout.size)
    inputs = random.normal(size=(9, 3, 1, 2))
    classes = random.integers(0, 3, 9)
    return network, Batch(inputs, classes if targets == "classes" else random.uniform(size=(9, 3)))


def differences(loss, vector):
    """Central differences of loss() with respect to each element of a vector that it reads."""
    gradient = np.empty_like(vector)
    for index, value in enumerate(vector):
        vector[index] = value + STEP
        above = loss()
        vector[index] = value - STEP
        below = loss()
        vector[index] = value
        gradient[index] = (above - below) / (2 * STEP)
    return gradient


@pytest.mark.parametrize(
    ("activation", "targets", "loss"),
    in_turn(ACTIVATIONS, list(product(["classes", "floats"], LOSSES)), each=len(LOSSES)),
)
def test_gradient_meets_finite_differences(activation, loss, targets):
    network, batch = network_and_batch(activation, loss, targets)
    gradient = network.loss_and_gradient(batch)[1].copy()
    expected = differences(lambda: network.loss_and_gradient(batch)[0], network.parameters)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_passes_through_the_last_layers_activation(activation):
    network, batch = network_and_batch("tanh", "mean_squared_error", "floats", last=activation)
    gradient = network.loss_and_gradient(batch)[1].copy()
    expected = differences(lambda: network.loss_and_gradient(batch)[0], network.parameters)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
