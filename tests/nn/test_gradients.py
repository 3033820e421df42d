"""Gradients against finite differences and the adjoint identity, in float64."""

import numpy as np
import pytest

from mpidl.data.batch import Batch
from mpidl.nn import ACTIVATIONS, LOSSES, Dense, Network

STEP = 1e-6


def network_and_batch(activation, loss, targets, last="identity"):
    layers = [Dense(7, activation), Dense(5, activation), Dense(3, last)]
    network = Network(layers, (3, 1, 2), LOSSES[loss](), dtype="float64", seed=3)
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


@pytest.mark.parametrize("targets", ["classes", "floats"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
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


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("samples", [1, 4])
def test_dense_meets_the_adjoint_identity(activation, samples):
    """<J x, y> = <x, J^T y> for x of inputs, weight and bias at once."""
    layer, random = Dense(5, activation), np.random.default_rng(11)
    shapes = layer.parameters((3, 2))
    parameters = {name: random.normal(size=shape) for name, shape in shapes.items()}
    inputs = random.normal(size=(samples, 3, 2))
    inputs_x = random.normal(size=inputs.shape)
    parameters_x = {name: random.normal(size=shape) for name, shape in shapes.items()}
    y = random.normal(size=(samples, 5))

    def forward(step):
        outputs = np.empty((samples, 5))
        moved = {name: value + step * parameters_x[name] for name, value in parameters.items()}
        layer.forward(np, moved, inputs + step * inputs_x, outputs)
        return outputs

    jacobian_x = (forward(STEP) - forward(-STEP)) / (2 * STEP)
    gradients = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
    inputs_y = np.full_like(inputs, np.nan)
    layer.backward(np, parameters, gradients, inputs, forward(0), y.copy(), inputs_y)
    transposed = np.vdot(inputs_x, inputs_y) + sum(np.vdot(parameters_x[n], gradients[n]) for n in shapes)
    np.testing.assert_allclose(np.vdot(jacobian_x, y), transposed, rtol=1e-7)
