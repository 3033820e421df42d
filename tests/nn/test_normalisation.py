"""Normalisation against plain NumPy, and local contrast normalisation against PyTorch."""

import numpy as np
import pytest

import mpidl
from layer_cases import Alone
from mpidl.errors import UsageError
from mpidl.nn import BatchNormalisation, Dense, LayerNormalisation, LocalContrastNormalisation, Network, from_config
from mpidl.nn.kernels import cpu
from mpidl.nn.layers.local_contrast_normalisation import CroppedNormalisation
from mpidl.parameters import Range

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
    assert (BatchNormalisation().momentum, BatchNormalisation().epsilon, LayerNormalisation().epsilon) == (
        0.1,
        1e-5,
        1e-5,
    )
    assert summary["test_accuracy"] > 0.9


#: Layers, each with the shape of one sample's inputs: also a window larger than the image, and active thresholds.
CASES = [
    (LocalContrastNormalisation(), (12, 17, 3)),
    (LocalContrastNormalisation(9), (5, 4, 8)),
    (LocalContrastNormalisation(3, threshold=1.0), (8, 7, 2)),
    (LocalContrastNormalisation(5, threshold=0.8), (9, 6, 1)),
]


def window_of(layer):
    """Return the Gaussian window (size, size), not normalised."""
    line = np.exp(-0.5 * ((np.arange(layer.size) - layer.size // 2) / (layer.size / 4)) ** 2)
    return np.outer(line, line)


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=str)
def test_contrast_is_that_of_a_network_of_pytorch(layer, shape):
    torch = pytest.importorskip("torch")
    alone = Alone(layer, shape, dtype="float32")
    window = torch.tensor(window_of(layer), dtype=torch.float32)[None, None]
    shares = torch.nn.functional.conv2d(torch.ones(1, 1, *shape[:2]), window, padding="same")

    def means(images):
        planes = images.mean(dim=1, keepdim=True)
        return torch.nn.functional.conv2d(planes, window, padding="same") / shares

    inputs = torch.tensor(alone.inputs[0]).permute(0, 3, 1, 2).requires_grad_()
    centred = inputs - means(inputs)
    outputs = centred / means(centred**2).sqrt().clamp(min=layer.threshold)
    gradient = alone.random.normal(size=alone.outputs.shape).astype("float32")
    outputs.backward(torch.tensor(gradient).permute(0, 3, 1, 2))
    for found, expected in ((alone.backward(gradient)[0], inputs.grad), (alone.forward(), outputs.detach())):
        np.testing.assert_allclose(found, expected.permute(0, 2, 3, 1).numpy(), rtol=1e-5, atol=1e-5)


def test_brightness_and_contrast_of_an_image_are_lost():
    alone = Alone(LocalContrastNormalisation(5), (8, 9, 3))
    expected = alone.forward().copy()
    alone.inputs[0][...] = 7 * alone.inputs[0] + 30
    np.testing.assert_allclose(alone.forward(), expected, rtol=1e-9, atol=1e-9)


def test_below_the_threshold_the_layer_is_linear():
    """A uniform image's deviation is zero, where the square root has no derivative."""
    alone = Alone(LocalContrastNormalisation(3, threshold=0.1), (6, 5, 2))
    contrast, y = 0.01 * alone.inputs[0], alone.random.normal(size=alone.outputs.shape)
    alone.inputs[0][...] = 0.5
    gradient = alone.backward(y)[0].copy()
    np.testing.assert_allclose(alone.forward(), np.zeros((4, 6, 5, 2)), atol=1e-12)
    alone.inputs[0] += contrast
    np.testing.assert_allclose(np.vdot(alone.forward(), y), np.vdot(gradient, contrast), rtol=1e-9)


def test_cropped_outputs_lack_pixels_at_the_borders():
    layers = LocalContrastNormalisation(5), CroppedNormalisation(size=5, kept=(Range(2, 8), Range(0, 5)))
    whole, cropped = (Alone(layer, (9, 8, 2)) for layer in layers)
    np.testing.assert_array_equal(cropped.forward(), whole.forward()[:, 2:8, :5])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"size": 4}, "model.layer[0].size: 4, expected an odd number"),
        ({"size": 0}, "model.layer[0].size: expected int >= 1, found 0"),
        ({"threshold": 0}, "model.layer[0].threshold: expected float > 0, found 0"),
        ({}, "model.layer[0]: inputs of shape (6,), expected (height, width[, channels])"),
    ],
)
def test_wrong_keys_of_a_normalisation(keys, message):
    with pytest.raises(UsageError) as caught:
        from_config([{"type": "local_contrast_normalisation", **keys}], "softmax_cross_entropy", (6,), seed=7)
    assert str(caught.value) == message


@pytest.mark.parametrize("layer", ["local_contrast_normalisation", "max_pool2d"])
def test_a_long_shape_is_told_in_part(layer):
    with pytest.raises(UsageError, match=r"inputs of shape .{1,300}, expected \(height, width\[, channels\]\)"):
        from_config([{"type": layer, "size": 3}], "softmax_cross_entropy", (1,) * 500, seed=7)
