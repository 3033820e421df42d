"""Local contrast normalisation against plain NumPy, and against PyTorch."""

import numpy as np
import pytest

from layer_cases import Alone
from mpidl.errors import UsageError
from mpidl.nn import LocalContrastNormalisation, from_config
from mpidl.nn.layers.local_contrast_normalisation import CroppedNormalisation
from mpidl.parameters import Range

#: Layers, each with the shape of one sample's inputs: also a window larger than the image, and active thresholds.
CASES = [
    (LocalContrastNormalisation(), (12, 17, 3)),
    (LocalContrastNormalisation(9), (5, 4, 8)),
    (LocalContrastNormalisation(3, threshold=1.0), (8, 7, 2)),
    (LocalContrastNormalisation(5, threshold=0.8), (9, 6, 1)),
]
normalised = pytest.mark.parametrize(("layer", "shape"), CASES, ids=str)


def window_of(layer):
    """Return the Gaussian window (size, size), not normalised."""
    line = np.exp(-0.5 * ((np.arange(layer.size) - layer.size // 2) / (layer.size / 4)) ** 2)
    return np.outer(line, line)


def window_means(layer, planes):
    """Return the windows' means of planes (n, height, width), pixel by pixel."""
    window, reach, (_, height, width) = window_of(layer), layer.size // 2, planes.shape
    means = np.empty_like(planes)
    for y in range(height):
        for x in range(width):
            rows = slice(max(0, y - reach), min(height, y + reach + 1))
            columns = slice(max(0, x - reach), min(width, x + reach + 1))
            down = slice(rows.start - y + reach, rows.stop - y + reach)
            part = window[down, columns.start - x + reach : columns.stop - x + reach]
            means[:, y, x] = (planes[:, rows, columns] * part).sum(axis=(1, 2)) / part.sum()
    return means


@normalised
def test_outputs_are_those_of_each_pixel(layer, shape):
    alone = Alone(layer, shape, dtype="float32")
    images = alone.inputs[0].astype("float64")
    centred = images - window_means(layer, images.mean(axis=-1))[..., None]
    deviation = np.sqrt(window_means(layer, (centred**2).mean(axis=-1)))[..., None]
    expected = centred / np.maximum(layer.threshold, deviation)
    np.testing.assert_allclose(alone.forward(), expected, rtol=1e-5, atol=1e-5)


@normalised
def test_outputs_and_gradients_are_pytorchs(layer, shape):
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
def test_wrong_keys(keys, message):
    with pytest.raises(UsageError) as caught:
        from_config([{"type": "local_contrast_normalisation", **keys}], "softmax_cross_entropy", (6,), seed=7)
    assert str(caught.value) == message


@pytest.mark.parametrize("layer", ["local_contrast_normalisation", "max_pool2d"])
def test_a_long_shape_is_told_in_part(layer):
    with pytest.raises(UsageError, match=r"inputs of shape .{1,300}, expected \(height, width\[, channels\]\)"):
        from_config([{"type": layer, "size": 3}], "softmax_cross_entropy", (1,) * 500, seed=7)
