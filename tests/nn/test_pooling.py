"""Pooling against plain NumPy, and against PyTorch."""

import numpy as np
import pytest

from layer_cases import Alone
from mpidl.errors import UsageError
from mpidl.nn import AveragePool2d, L2Pool2d, MaxPool2d, from_config

NAN = float("nan")
#: Layers, each with the shape of one sample's inputs; the paddings are valid in PyTorch too.
CASES = [
    (layer(size, stride, padding), shape)
    for layer in (MaxPool2d, AveragePool2d, L2Pool2d)
    for size, stride, padding, shape in (
        (2, None, 0, (7, 9, 5)),
        (3, 2, 1, (8, 9, 3)),
        ([3, 5], [2, 1], [1, 2], (10, 7, 17)),
        (5, 1, "same", (6, 7, 2)),
        (3, 4, 0, (12, 4, 1)),
    )
]
#: Paddings that differ from side to side.
ONE_SIDED = [
    (layer(size, stride, padding), shape)
    for layer in (MaxPool2d, AveragePool2d, L2Pool2d)
    for size, stride, padding, shape in (
        (3, 2, [[2, 0], [0, 1]], (8, 9, 3)),
        ([4, 2], 1, [[0, 3], 1], (5, 4, 2)),
        (3, 3, [[1, 0], [2, 2]], (5, 7, 1)),
    )
]
pooled = pytest.mark.parametrize(("layer", "shape"), CASES, ids=str)

REDUCTIONS = {
    "max_pool2d": lambda window: window.max(axis=(1, 2)),
    "average_pool2d": lambda window: np.nan_to_num(window, neginf=0).mean(axis=(1, 2)),
    "l2_pool2d": lambda window: np.sqrt((np.nan_to_num(window, neginf=0) ** 2).sum(axis=(1, 2))),
}


def like_a_network(layer, shape):
    """Return the layer with float32 inputs of which half are zero, so that there are ties and windows of zeros."""
    alone = Alone(layer, shape, dtype="float32")
    alone.inputs[0][...] = np.maximum(alone.inputs[0], 0)
    return alone


@pytest.mark.parametrize(("layer", "shape"), CASES + ONE_SIDED, ids=str)
def test_outputs_are_those_of_each_window(layer, shape):
    alone, windows = like_a_network(layer, shape), layer.windows(shape)
    edges = [(0, 0), *zip(windows.padding, windows.after, strict=True), (0, 0)]
    padded = np.pad(alone.inputs[0], edges, constant_values=-np.inf)
    outputs = alone.forward()
    for y in range(windows.positions[0]):
        for x in range(windows.positions[1]):
            top, left = y * windows.stride[0], x * windows.stride[1]
            window = padded[:, top : top + windows.size[0], left : left + windows.size[1]]
            np.testing.assert_allclose(outputs[:, y, x], REDUCTIONS[layer.type](window), rtol=1e-5)


@pooled
def test_outputs_and_gradients_are_pytorchs(layer, shape):
    torch = pytest.importorskip("torch")
    functional, windows = torch.nn.functional, layer.windows(shape)
    alone = like_a_network(layer, shape)
    inputs = torch.tensor(alone.inputs[0]).permute(0, 3, 1, 2).requires_grad_()
    if layer.type == "max_pool2d":
        outputs = functional.max_pool2d(inputs, windows.size, windows.stride, windows.padding)
    elif layer.type == "average_pool2d":
        outputs = functional.avg_pool2d(inputs, windows.size, windows.stride, windows.padding)
    else:
        edges = (windows.padding[1], windows.padding[1], windows.padding[0], windows.padding[0])
        outputs = functional.lp_pool2d(functional.pad(inputs, edges), 2.0, windows.size, windows.stride)
    gradient = alone.random.normal(size=alone.outputs.shape).astype("float32")
    outputs.backward(torch.tensor(gradient).permute(0, 3, 1, 2))
    # PyTorch's gradient is NaN in a window of zeros, where the root has no derivative.
    expected = np.nan_to_num(inputs.grad.permute(0, 2, 3, 1).numpy(), nan=0)
    np.testing.assert_allclose(alone.forward(), outputs.detach().permute(0, 2, 3, 1).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(alone.backward(gradient)[0], expected, rtol=1e-5, atol=1e-5)


def test_the_first_of_equal_maxima_has_the_gradient():
    alone = Alone(MaxPool2d(2, 1), (2, 3), samples=1)
    alone.inputs[0][...] = [[[0, 1, 0], [1, 0, 1]]]
    np.testing.assert_array_equal(alone.backward(np.array([[[3, 5]]]))[0], [[[0, 8, 0], [0, 0, 0]]])


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_maximum_over_nan_is_nan(place):
    alone = Alone(MaxPool2d(2), (2, 2), samples=1)
    alone.inputs[0][(0, *place)] = NAN
    assert np.isnan(alone.forward()).all()


def test_a_maximum_is_never_the_padding():
    alone = Alone(MaxPool2d(3, padding=2), (4, 4), samples=1)
    alone.inputs[0][...] = -1
    np.testing.assert_array_equal(alone.forward(), np.full((1, 2, 2), -1))


def test_a_window_of_zeros_has_no_gradient():
    alone = Alone(L2Pool2d(2), (2, 4), samples=1)
    alone.inputs[0][...] = [[[0, 0, 3, 0], [0, 0, 4, 0]]]
    np.testing.assert_array_equal(alone.backward(5)[0], [[[0, 0, 3, 0], [0, 0, 4, 0]]])
    np.testing.assert_array_equal(alone.forward(), [[[0, 5]]])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"size": 5}, "model.layer[0]: size: 5, larger than the inputs' width, 4, and padding 0"),
        ({"padding": 2}, "model.layer[0]: padding: 2, expected less than the size (2)"),
        ({"padding": [[0, 1], [2, 0]]}, "model.layer[0]: padding: 2, expected less than the size (2)"),
        (
            {"size": 9, "padding": [[0, 2], 0]},
            "model.layer[0]: size: 9, larger than the inputs' height, 6, and padding [0, 2]",
        ),
        ({"padding": "same"}, "model.layer[0]: padding: 'same' takes odd sizes, found [2, 2]"),
        ({"stride": 0}, "model.layer[0].stride: expected int >= 1 or non-empty list of int >= 1, found 0"),
    ],
)
def test_wrong_keys(keys, message):
    with pytest.raises(UsageError) as caught:
        from_config([{"type": "max_pool2d", **keys}], "softmax_cross_entropy", (6, 4, 2), seed=7)
    assert str(caught.value) == message
