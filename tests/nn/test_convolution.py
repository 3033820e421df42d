"""Convolution by patches and by tiles, in blocks of any size: against its definition, the formulas and PyTorch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer_cases import Alone
from mpidl.nn import Conv2d, LocallyConnected2d, winograd
from mpidl.nn.kernels.cpu.winograd import DATA, DATA_ADJOINT, FORMULAS, OUTPUTS, OUTPUTS_ADJOINT, POINTS, STEP
from mpidl.nn.layers import conv2d
from mpidl.nn.sliding_windows import sliding_windows, under_windows
from mpidl.nn.winograd import kernel_matrix
from mpidl.parameters import Range


def by_definition(layer, inputs, weight, bias):
    """Return the cross-correlation of images with a weight, at stride 1."""
    down, across = weight.shape[:2]
    padded = np.pad(inputs, ((0, 0), *np.broadcast_to(np.reshape(layer.padding, (2, -1)), (2, 2)), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (down, across), axis=(1, 2))
    return np.einsum("nyxcuv,uvck->nyxk", windows, weight) + bias


@given(
    size=st.sampled_from([3, 5]),
    padding=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=2, max_size=2),
    image=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    depth=st.integers(8, 11),
    channels=st.integers(8, 13),
    samples=st.integers(1, 5),
    memory=st.sampled_from([1, 3000, 30000, 1 << 19]),
)
def test_tiles_of_any_block(size, padding, image, depth, channels, samples, memory):
    layer = Conv2d(channels, size, padding=padding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "TILES", memory)
        alone = Alone(layer, (*image, depth), samples=samples)
        inputs, weight, bias = alone.variables
        expected = by_definition(layer, inputs, weight, bias)
        np.testing.assert_allclose(alone.forward(), expected, rtol=1e-11, atol=1e-11)
        y = alone.random.normal(size=expected.shape)
        gradients = [gradient.copy() for gradient in alone.backward(y)]
    # The convolution is linear in the inputs and in the weight, so the gradients are tested as adjoints.
    x, w = alone.random.normal(size=inputs.shape), alone.random.normal(size=weight.shape)
    assert np.vdot(gradients[0], x) == pytest.approx(np.vdot(y, by_definition(layer, x, weight, 0)))
    assert np.vdot(gradients[1], w) == pytest.approx(np.vdot(y, by_definition(layer, inputs, w, 0)))
    np.testing.assert_allclose(gradients[2], y.sum(axis=(0, 1, 2)))


@pytest.mark.parametrize("memory", [1, 500, 1 << 19])
@pytest.mark.parametrize(
    ("size", "padding", "image"),
    [
        (3, [1, 2], (7, 9, 2)),
        (3, [1, 2], (7, 9, 1)),
        ([2, 5], [0, 4], (5, 2, 1)),
        (5, [4, 0], (1, 6, 1)),
        (3, [[2, 0], [0, 1]], (7, 9, 1)),
        (4, [[0, 3], [3, 1]], (6, 5, 2)),
    ],
)
def test_patches_of_any_block(size, padding, image, memory, monkeypatch):
    monkeypatch.setattr(conv2d, "PATCHES", memory)
    layer = Conv2d(3, size, padding=padding)
    alone = Alone(layer, image, samples=5)
    inputs, weight, bias = alone.variables
    np.testing.assert_allclose(alone.forward(), by_definition(layer, inputs, weight, bias), rtol=1e-11, atol=1e-11)
    y = alone.random.normal(size=alone.outputs.shape)
    gradients = [gradient.copy() for gradient in alone.backward(y)]
    x, w = alone.random.normal(size=inputs.shape), alone.random.normal(size=weight.shape)
    assert np.vdot(gradients[0], x) == pytest.approx(np.vdot(y, by_definition(layer, x, weight, 0)))
    assert np.vdot(gradients[1], w) == pytest.approx(np.vdot(y, by_definition(layer, inputs, w, 0)))


def test_which_windows_tiles_compute():
    def tiled(layer, shape):
        return "tiles" in layer.buffers(shape)

    assert tiled(Conv2d(8, 3), (9, 9, 8))
    assert tiled(Conv2d(8, 5, padding="same"), (9, 9, 8))
    for layer, shape in (
        (Conv2d(8, 3), (9, 9, 7)),
        (Conv2d(7, 3), (9, 9, 8)),
        (Conv2d(8, 3, stride=2), (9, 9, 8)),
        (Conv2d(8, [3, 5]), (9, 9, 8)),
        (Conv2d(8, 7), (9, 9, 8)),
        (Conv2d(8, 3, groups=2), (9, 9, 8)),
    ):
        assert not tiled(layer, shape)


def nchw(torch, array):
    return torch.tensor(np.moveaxis(array, -1, 1).copy(), requires_grad=True)


def nhwc(tensor):
    return np.moveaxis(tensor.detach().numpy(), 1, -1)


def compare(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize(
    ("depth", "size", "stride", "padding", "groups"),
    [
        (4, (3, 3), (1, 1), (1, 1), 1),
        (4, (5, 3), (2, 1), (2, 0), 1),
        (4, (3, 3), (1, 2), (0, 1), 2),
        (4, (1, 1), (3, 3), (0, 0), 4),
        (33, (3, 3), (1, 1), (1, 1), 1),
        (33, (5, 5), (1, 1), (2, 1), 1),
    ],
)
def test_conv2d_is_pytorchs(depth, size, stride, padding, groups):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    layer = Conv2d(8, list(size), "relu", stride=list(stride), padding=list(padding), groups=groups)
    alone = Alone(layer, (11, 9, depth), dtype="float32")
    x = nchw(torch, alone.inputs[0])
    weight = torch.tensor(alone.parameters["weight"].transpose(3, 2, 0, 1).copy(), requires_grad=True)
    bias = torch.tensor(alone.parameters["bias"], requires_grad=True)
    outputs = functional.relu(functional.conv2d(x, weight, bias, stride, padding, groups=groups))
    compare(alone.forward(), nhwc(outputs))
    y = np.random.default_rng(1).normal(size=alone.outputs.shape).astype(np.float32)
    outputs.backward(torch.tensor(np.moveaxis(y, -1, 1).copy()))
    inputs, weights, biases = alone.backward(y)
    compare(inputs, nhwc(x.grad))
    compare(weights, weight.grad.numpy().transpose(2, 3, 1, 0))
    compare(biases, bias.grad.numpy())


def test_locally_connected2d_is_pytorchs():
    torch = pytest.importorskip("torch")
    alone = Alone(LocallyConnected2d(5, [3, 2], stride=[2, 1]), (9, 7, 3), dtype="float32")
    x = nchw(torch, alone.inputs[0])
    patches = torch.nn.functional.unfold(x, (3, 2), stride=(2, 1))
    # Unfolded windows have their channels first.
    weight = torch.tensor(alone.parameters["weight"].transpose(0, 1, 4, 2, 3, 5).reshape(-1, 18, 5).copy())
    weight.requires_grad_()
    bias = torch.tensor(alone.parameters["bias"].reshape(-1, 5))
    outputs = torch.einsum("nkp,pko->npo", patches, weight) + bias
    compare(alone.forward().reshape(4, -1, 5), outputs.detach().numpy())
    y = np.random.default_rng(1).normal(size=alone.outputs.shape).astype(np.float32)
    outputs.backward(torch.tensor(y.reshape(4, -1, 5)))
    inputs, weights, biases = alone.backward(y)
    compare(inputs, nhwc(x.grad))
    compare(weights.transpose(0, 1, 4, 2, 3, 5).reshape(-1, 18, 5), weight.grad.numpy())
    compare(biases.reshape(-1, 5), y.reshape(4, -1, 5).sum(axis=0))


def matrices(side):
    """Return A and B of a tile's points, the last of which is infinity (Toom and Cook's construction)."""
    points = [0.0, *(sign * point for point in POINTS[side] for sign in (1, -1))]
    a = np.zeros((side, STEP))
    a[:-1] = np.power.outer(points, np.arange(STEP))
    a[-1, -1] = 1
    rows = [np.poly([other for other in points if other != point])[::-1] for point in points]
    b = np.zeros((side, side))
    b[:-1, :-1] = rows
    b[-1] = np.poly(points)[::-1]
    return a, b.T


@pytest.mark.parametrize("side", [6, 8])
def test_formulas(side):
    a, b = matrices(side)
    for kind, matrix in {DATA: b.T, DATA_ADJOINT: b, OUTPUTS: a.T, OUTPUTS_ADJOINT: a}.items():
        found = np.array([FORMULAS[side][kind](unit) for unit in np.eye(matrix.shape[1])]).T
        np.testing.assert_allclose(found, matrix, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("side", [6, 8])
def test_four_outputs_of_a_filter(side):
    random, size = np.random.default_rng(0), side - STEP + 1
    data, kernel = random.normal(size=side), random.normal(size=size)
    # The two-dimensional matrix contains the one-dimensional one: the entries of a corner of the kernel.
    g = kernel_matrix(size, "d").reshape(side, side, size, size)[-1, :, -1, :]
    products = (g @ kernel) * FORMULAS[side][DATA](data)
    np.testing.assert_allclose(FORMULAS[side][OUTPUTS](products), np.correlate(data, kernel), rtol=1e-12)


sizes = st.integers(1, 6)


@st.composite
def axes(draw):
    """Draw an extent, the windows on it, and some of their positions."""
    size = draw(sizes)
    before, after = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    extent, stride = draw(st.integers(max(1, size - before - after), 20)), draw(sizes)
    start, stop = sorted(
        draw(st.lists(st.integers(0, (extent + before + after - size) // stride), min_size=2, max_size=2))
    )
    return extent, size, stride, [before, after], Range(start, stop + 1)


def windows_on(values, windows):
    """Return the values under each window along one axis, NaN beyond the image."""
    padded = np.pad(values, (windows.padding[0], windows.after[0]), constant_values=np.nan)
    starts = range(0, windows.positions[0] * windows.stride[0], windows.stride[0])
    return [padded[start : start + windows.size[0]] for start in starts]


@given(axes(), axes())
def test_the_same_windows(down, across):
    (height, *_), (width, *_) = down, across
    size, stride, padding, positions = ([down[place], across[place]] for place in (1, 2, 3, 4))
    whole = sliding_windows((height, width, 3), size, stride, padding)
    (rows, columns), around = under_windows(whole, (height, width, 3), tuple(positions))
    part = sliding_windows((rows.size, columns.size, 3), size, stride, around)
    assert part.positions == tuple(each.size for each in positions)
    values = np.arange(float(height))
    np.testing.assert_array_equal(
        windows_on(values[slice(*rows)], part), windows_on(values, whole)[slice(*positions[0])]
    )
