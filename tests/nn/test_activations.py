"""Activations against their definitions; their derivatives are in test_gradients.py."""

from math import erf

import numpy as np
import pytest

from mpidl.nn import ACTIVATIONS

DEFINITIONS = {
    "identity": lambda z: z,
    "relu": lambda z: np.where(z > 0, z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
    "gelu": lambda z: z * (1 + np.vectorize(erf)(z / np.sqrt(2))) / 2,
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": lambda z: (np.exp(z) - np.exp(-z)) / (np.exp(z) + np.exp(-z)),
    "softmax": lambda z: np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True),
}
ELEMENTWISE = [name for name in ACTIVATIONS if name != "softmax"]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "accuracy"), [(np.float32, 3e-7), (np.float64, 1e-15)])
def test_values(name, dtype, accuracy):
    values = np.random.default_rng(0).normal(size=(5, 3, 7)) * 3
    outputs = values.astype(dtype)
    ACTIVATIONS[name].apply(np, outputs)
    expected = DEFINITIONS[name](values.astype(dtype).astype(np.float64))
    np.testing.assert_allclose(outputs, expected, rtol=1e-6 if dtype == np.float32 else 1e-15, atol=accuracy)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "low", "high"), [("sigmoid", 0, 1), ("tanh", -1, 1), ("relu", 0, 1e30)])
def test_large_values(name, low, high):
    outputs = np.array([-1e30, 1e30], np.float32)
    ACTIVATIONS[name].apply(np, outputs)
    np.testing.assert_array_equal(outputs, np.array([low, high], np.float32))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_not_a_number_stays_one(name):
    outputs = np.array([np.nan, 1, -np.nan])
    ACTIVATIONS[name].apply(np, outputs)
    np.testing.assert_array_equal(np.isnan(outputs), [True, False, True])


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_derivative_multiplies_the_gradient(name):
    values = np.array([-2.0, -0.5, 0.25, 3.0])
    outputs, gradient = values.copy(), np.array([1.0, -2.0, 3.0, 0.5])
    ACTIVATIONS[name].apply(np, outputs)
    ACTIVATIONS[name].backprop(np, values if ACTIVATIONS[name].needs_inputs else outputs, gradient)
    slope = (DEFINITIONS[name](values + 1e-6) - DEFINITIONS[name](values - 1e-6)) / 2e-6
    np.testing.assert_allclose(gradient, slope * [1.0, -2.0, 3.0, 0.5], rtol=1e-7, atol=1e-9)


def test_relu_has_no_slope_at_zero():
    outputs, gradient = np.zeros(3), np.ones(3)
    ACTIVATIONS["relu"].backprop(np, outputs, gradient)
    np.testing.assert_array_equal(gradient, [0, 0, 0])
