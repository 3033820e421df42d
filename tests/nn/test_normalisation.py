"""Normalisation against plain NumPy."""

import numpy as np
import pytest

import mpidl
from layer_cases import Alone
from mpidl.nn import BatchNormalisation, Dense, LayerNormalisation, Network
from mpidl.nn.kernels import cpu

#: Shape of a sample and number of samples: rows that are processed several at a time, and odd numbers that aren't.
SHAPES = [((5, 3, 4), 7), ((4, 4, 3), 8), ((16,), 32), ((2, 300), 6), ((1,), 5), ((3, 129), 3)]
shapes = pytest.mark.parametrize(("shape", "samples"), SHAPES)
precisions = pytest.mark.parametrize(("dtype", "accuracy"), [("float32", 1e-5), ("float64", 1e-12)])


def close(found, expected, accuracy):
    np.testing.assert_allclose(found, expected, rtol=accuracy, atol=accuracy * max(1, np.abs(expected).max()))


def normalised(alone, axis, epsilon):
    """Return the outputs and gradients expected by definition, and the upstream gradient used."""
    x = alone.inputs[0].astype(np.float64)
    scale, shift = (alone.parameters[name].astype(np.float64) for name in ("scale", "shift"))
    y = alone.random.normal(size=x.shape).astype(alone.outputs.dtype)
    root = np.sqrt(x.var(axis=axis, keepdims=True) + epsilon)
    units = (x - x.mean(axis=axis, keepdims=True)) / root
    slope = y * scale
    along = (slope * units).mean(axis=axis, keepdims=True)
    inputs = (slope - slope.mean(axis=axis, keepdims=True) - units * along) / root
    others = tuple(range(x.ndim - 1))
    return units * scale + shift, (inputs, (y * units).sum(axis=others), y.sum(axis=others)), y


@shapes
@precisions
def test_batches_are_normalised_over_all_but_the_last_axis(shape, samples, dtype, accuracy):
    alone = Alone(BatchNormalisation(momentum=0.3, epsilon=0.01), shape, samples, dtype)
    outputs, gradients, y = normalised(alone, tuple(range(len(shape))), 0.01)
    close(alone.forward(), outputs, accuracy)
    for found, expected in zip(alone.backward(y), gradients, strict=True):
        close(found, expected, accuracy)
    x = alone.inputs[0].astype(np.float64).reshape(-1, shape[-1])
    for name, batch in (("mean", x.mean(axis=0)), ("variance", x.var(axis=0, ddof=1))):
        updated = alone.parameters[name] - alone.gradients[name]
        close(updated, 0.7 * alone.parameters[name] + 0.3 * batch, accuracy)


@shapes
@precisions
def test_layers_are_normalised_over_the_last_axis(shape, samples, dtype, accuracy):
    alone = Alone(LayerNormalisation(epsilon=0.01), shape, samples, dtype)
    outputs, gradients, y = normalised(alone, -1, 0.01)
    close(alone.forward(), outputs, accuracy)
    for found, expected in zip(alone.backward(y), gradients, strict=True):
        close(found, expected, accuracy)


@shapes
@precisions
def test_evaluation_takes_the_running_statistics_and_keeps_them(shape, samples, dtype, accuracy):
    alone = Alone(BatchNormalisation(epsilon=0.01), shape, samples, dtype, training=False)
    before = {name: value.copy() for name, value in alone.parameters.items()}
    mean, variance, scale, shift = (before[name] for name in ("mean", "variance", "scale", "shift"))
    close(alone.forward(), (alone.inputs[0] - mean) / np.sqrt(variance + 0.01) * scale + shift, accuracy)
    for name, value in before.items():
        np.testing.assert_array_equal(alone.parameters[name], value)
        assert np.isnan(alone.gradients[name]).all()


def test_the_first_parameters_change_nothing_but_for_epsilon():
    layer, random = BatchNormalisation(epsilon=1e-9), np.random.default_rng(0)
    for name, shape in layer.parameters((3, 5)).items():
        value = np.full(shape, np.nan, np.float32)
        layer.initial(name, shape, random, value)
        np.testing.assert_array_equal(value, np.full(5, {"scale": 1, "shift": 0, "mean": 0, "variance": 1}[name]))


@pytest.mark.parametrize("n", [1024, 1023])
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda random, n: random.normal(1e6, 1, (n, 3)), id="far from zero"),
        pytest.param(lambda random, n: np.eye(n, 3) * 1e9 + random.normal(size=(n, 3)), id="a first row far away"),
        pytest.param(lambda random, n: np.full((n, 3), 0.1), id="constant"),
    ],
)
def test_moments_lose_no_digits(values, n):
    columns = values(np.random.default_rng(1), n).astype(np.float32)
    mean, variance = np.empty(3), np.empty(3)
    cpu.column_moments(columns, mean, variance)
    exact = columns.astype(np.longdouble)
    # An error of the mean matters relative to the standard deviation.
    assert (np.abs(mean - exact.mean(axis=0)) <= 1e-12 * exact.std(axis=0) + 1e-15 * np.abs(mean)).all()
    np.testing.assert_allclose(variance, exact.var(axis=0).astype(float), rtol=1e-11, atol=1e-25)


def test_a_value_that_is_not_a_number_shows():
    columns = np.ones((8, 2), np.float32)
    columns[5, 1] = np.nan
    mean, variance = np.empty(2), np.empty(2)
    cpu.column_moments(columns, mean, variance)
    np.testing.assert_array_equal(mean, [1, np.nan])
    np.testing.assert_array_equal(variance, [0, np.nan])


def test_the_default_momentum_follows_a_short_run(tmp_path):
    """After 64 steps from running averages of 0 and 1, those of a tenth of each batch are the data's; see PyTorch."""
    network = Network([Dense(64), BatchNormalisation(activation="relu"), Dense(10)], (8, 8))
    summary = mpidl.train(network, mpidl.Digits(), rule=mpidl.Adagrad(0.05), batch=64, steps=64, dir=tmp_path)
    assert BatchNormalisation().momentum == 0.1
    assert summary["test_accuracy"] > 0.9
