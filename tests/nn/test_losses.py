"""Losses and activations against their definitions; the activations' derivatives are in test_graph.py, too."""

import math
from math import erf

import numpy as np
import pytest

from mpidl.metrics import METRICS
from mpidl.nn import ACTIVATIONS, LOSSES, SoftmaxCrossEntropy

RANDOM = np.random.default_rng(2)
OUTPUTS = RANDOM.normal(size=(11, 7)) * 3
CLASSES = RANDOM.integers(0, 7, 11)
ROWS = RANDOM.uniform(size=(11, 7))


def softmax_cross_entropy(z, t):
    return -(t * np.log(np.exp(z) / np.exp(z).sum())).sum()


def one_vs_all_logistic(z, t):
    p = 1 / (1 + np.exp(-z))
    return -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum()


def mean_squared_error(z, t):
    return ((z - t) ** 2).mean()


DEFINITIONS = {f.__name__: f for f in (softmax_cross_entropy, one_vs_all_logistic, mean_squared_error)}


def value_and_gradient(name, outputs, targets):
    gradient = np.full_like(outputs, np.nan)
    return LOSSES[name]().loss_and_gradient(np, outputs, targets, gradient), gradient


def test_every_loss_has_a_definition_here():
    assert DEFINITIONS.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("targets", "rows"), [(CLASSES, np.eye(7)[CLASSES]), (ROWS, ROWS)])
def test_mean_over_the_batch(name, targets, rows):
    loss, _ = value_and_gradient(name, OUTPUTS, targets)
    expected = np.mean([DEFINITIONS[name](z, t) for z, t in zip(OUTPUTS, rows, strict=True)])
    assert isinstance(loss, float)
    assert loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_class_ids_stand_for_rows_of_zeros_and_a_one(name, dtype):
    loss, gradient = value_and_gradient(name, OUTPUTS, CLASSES.astype(dtype))
    same_loss, same_gradient = value_and_gradient(name, OUTPUTS, np.eye(7)[CLASSES])
    assert loss == pytest.approx(same_loss, rel=1e-12)
    np.testing.assert_allclose(gradient, same_gradient, rtol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_outputs_are_kept_and_float32_stays_close(name):
    outputs = OUTPUTS.astype(np.float32)
    before = outputs.copy()
    loss, gradient = value_and_gradient(name, outputs, CLASSES)
    expected_loss, expected = value_and_gradient(name, OUTPUTS, CLASSES)
    np.testing.assert_array_equal(outputs, before)
    assert gradient.dtype == np.float32
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_logistic_losses_take_large_outputs():
    outputs = np.array([[1e4, -1e4], [1e4, -1e4]], np.float32)
    for name, expected in [("softmax_cross_entropy", 2e4), ("one_vs_all_logistic", 2e4)]:
        wrong, gradient = value_and_gradient(name, outputs[:1], np.array([1]))
        right, no_gradient = value_and_gradient(name, outputs[1:], np.array([0]))
        assert (wrong, right) == (expected, 0)
        np.testing.assert_array_equal(gradient, [[1, -1]])
        np.testing.assert_array_equal(no_gradient, [[0, 0]])


def test_correct_counts_the_highest_output():
    outputs = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    classes, rows = np.array([1, 1, 2]), np.array([[0, 0.6, 0.4], [0.2, 0.3, 0.5], [0.5, 0, 0.5]])
    for loss in LOSSES.values():
        assert loss().correct(np, outputs, classes) == 2
    assert LOSSES["softmax_cross_entropy"]().correct(np, outputs, rows) == 2
    assert math.isnan(LOSSES["mean_squared_error"]().correct(np, outputs, rows))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("where", [(slice(None), 0), (slice(None), 2), slice(None)])
def test_outputs_that_are_nan_are_never_right(name, where):
    outputs, classes = np.eye(3) - 0.5, np.arange(3)
    outputs[where] = math.nan
    loss = LOSSES[name]()
    assert loss.correct(np, outputs, classes) == 0
    assert loss.correct(np, outputs, np.eye(3)[classes]) == pytest.approx(
        math.nan if name == "mean_squared_error" else 0, nan_ok=True
    )


def test_of_several_labels_all_must_be_right():
    loss = LOSSES["one_vs_all_logistic"]()
    outputs = np.array([[-1.0, 2.0, 1.0], [3.0, -2.0, 1.0], [-1.0, -1.0, -2.0]])
    rows = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert loss.correct(np, outputs, rows) == 2
    assert loss.correct(np, outputs[:, :1], rows[:, :1]) == 3  # one output for two classes
    names = [LOSSES[name]().scoring(several).accuracy for name in LOSSES for several in (False, True)]
    assert names == ["accuracy", "accuracy", "accuracy", "exact match", "accuracy", "accuracy"]


def test_metrics_read_outputs_as_the_loss_does():
    outputs = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 0.5], [-3.0, -1.0, -2.0]])
    rows = np.array([[0.6, 0.3, 0.1], [0.1, 0.4, 0.5], [0.2, 0.45, 0.35]])
    found = {
        name: METRICS["f1"](LOSSES[name]().scoring(several_labels=True))
        for name in ("softmax_cross_entropy", "one_vs_all_logistic")
    }
    values = {name: metric.value(metric.sums(outputs, rows)) for name, metric in found.items()}
    # Classes 0, 2 and 1, of which 0, 1 and 1 are predicted; labels of the first alone, of which five are predicted.
    assert values == pytest.approx({"softmax_cross_entropy": (1 + 2 / 3 + 0) / 3, "one_vs_all_logistic": 2 / 9})


@pytest.mark.parametrize("smoothing", [0.1, 0.6])
@pytest.mark.parametrize("classes", [True, False])
def test_smoothed_labels_are_other_targets(smoothing, classes):
    random = np.random.default_rng(4)
    outputs = random.normal(size=(6, 5))
    targets = random.integers(0, 5, 6) if classes else 2 * random.random((6, 5))
    rows = np.eye(5)[targets] if classes else targets
    smoothed = (1 - smoothing) * rows + smoothing * rows.sum(axis=1, keepdims=True) / 5
    found, expected = np.empty((6, 5)), np.empty((6, 5))
    loss = SoftmaxCrossEntropy(smoothing).loss_and_gradient(np, outputs, targets, found)
    assert loss == pytest.approx(SoftmaxCrossEntropy().loss_and_gradient(np, outputs, smoothed, expected), rel=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_parts_of_a_batch_add_up_to_the_whole(name):
    random = np.random.default_rng(2)
    outputs, targets = random.normal(size=(7, 3)), random.integers(0, 3, 7)
    loss, whole, found, total = LOSSES[name](), np.empty_like(outputs), np.empty_like(outputs), 0.0
    expected = loss.loss_and_gradient(np, outputs, targets, whole)
    for part in (slice(0, 4), slice(4, 5), slice(5, 7)):
        total += loss.loss_and_gradient(np, outputs[part], targets[part], found[part], samples=7)
    assert total == pytest.approx(expected, rel=1e-12)
    assert found.tobytes() == whole.tobytes()


ACTIVATION_DEFINITIONS = {
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
    expected = ACTIVATION_DEFINITIONS[name](values.astype(dtype).astype(np.float64))
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
    slope = (ACTIVATION_DEFINITIONS[name](values + 1e-6) - ACTIVATION_DEFINITIONS[name](values - 1e-6)) / 2e-6
    np.testing.assert_allclose(gradient, slope * [1.0, -2.0, 3.0, 0.5], rtol=1e-7, atol=1e-9)


def test_relu_has_no_slope_at_zero():
    outputs, gradient = np.zeros(3), np.ones(3)
    ACTIVATIONS["relu"].backprop(np, outputs, gradient)
    np.testing.assert_array_equal(gradient, [0, 0, 0])
