"""Layers and losses against PyTorch in float32, where it is installed."""

import numpy as np
import pytest

from layer_cases import Alone
from mpidl.nn import (
    BatchNormalisation,
    Conv2d,
    Dense,
    Embedding,
    LayerNormalisation,
    LocallyConnected2d,
    SoftmaxCrossEntropy,
)

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def nchw(array):
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
def test_conv2d(depth, size, stride, padding, groups):
    layer = Conv2d(8, list(size), "relu", stride=list(stride), padding=list(padding), groups=groups)
    alone = Alone(layer, (11, 9, depth), dtype="float32")
    x = nchw(alone.inputs[0])
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


def test_locally_connected2d():
    alone = Alone(LocallyConnected2d(5, [3, 2], stride=[2, 1]), (9, 7, 3), dtype="float32")
    x = nchw(alone.inputs[0])
    patches = functional.unfold(x, (3, 2), stride=(2, 1))
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


@pytest.mark.parametrize("activation", ["relu", "gelu", "leaky_relu", "sigmoid", "tanh"])
def test_dense(activation):
    alone = Alone(Dense(5, activation), (3, 4), dtype="float32")
    x = torch.tensor(alone.inputs[0], requires_grad=True)
    weight, bias = (torch.tensor(alone.parameters[name], requires_grad=True) for name in ("weight", "bias"))
    function = getattr(functional, activation, None) or getattr(torch, activation)
    outputs = function(x.reshape(4, -1) @ weight + bias)
    compare(alone.forward(), outputs.detach().numpy())
    y = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    outputs.backward(torch.tensor(y))
    for found, expected in zip(alone.backward(y), (x, weight, bias), strict=True):
        compare(found, expected.grad.numpy())


def test_batch_normalisation():
    alone = Alone(BatchNormalisation(momentum=0.1), (5, 3, 4), dtype="float32", samples=7)
    x = nchw(alone.inputs[0])
    own = {name: value.copy() for name, value in alone.parameters.items()}
    scale, shift = (torch.tensor(own[name], requires_grad=True) for name in ("scale", "shift"))
    mean, variance = (torch.tensor(own[name]) for name in ("mean", "variance"))
    outputs = functional.batch_norm(x, mean, variance, scale, shift, training=True, momentum=0.1)
    compare(alone.forward(), nhwc(outputs))
    y = np.random.default_rng(1).normal(size=alone.outputs.shape).astype(np.float32)
    outputs.backward(torch.tensor(np.moveaxis(y, -1, 1).copy()))
    inputs, scales, shifts = alone.backward(y)
    compare(inputs, nhwc(x.grad))
    compare(scales, scale.grad.numpy())
    compare(shifts, shift.grad.numpy())
    compare(own["mean"] - alone.gradients["mean"], mean.numpy())
    compare(own["variance"] - alone.gradients["variance"], variance.numpy())


def test_layer_normalisation():
    alone = Alone(LayerNormalisation(), (3, 37), dtype="float32")
    x = torch.tensor(alone.inputs[0], requires_grad=True)
    scale, shift = (torch.tensor(alone.parameters[name], requires_grad=True) for name in ("scale", "shift"))
    outputs = functional.layer_norm(x, (37,), scale, shift)
    compare(alone.forward(), outputs.detach().numpy())
    y = np.random.default_rng(1).normal(size=alone.outputs.shape).astype(np.float32)
    outputs.backward(torch.tensor(y))
    for found, expected in zip(alone.backward(y), (x, scale, shift), strict=True):
        compare(found, expected.grad.numpy())


def test_embedding():
    alone = Alone(Embedding(7, 5), (9,), dtype="float32")
    weight = torch.tensor(alone.parameters["weight"], requires_grad=True)
    outputs = functional.embedding(torch.tensor(alone.inputs[0].astype(np.int64)), weight)
    compare(alone.forward(), outputs.detach().numpy())
    y = np.random.default_rng(1).normal(size=alone.outputs.shape).astype(np.float32)
    outputs.backward(torch.tensor(y))
    _, weights = alone.backward(y)
    compare(weights, weight.grad.numpy())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("classes", [True, False])
def test_softmax_cross_entropy(smoothing, classes):
    random = np.random.default_rng(3)
    outputs = random.normal(size=(6, 5)).astype(np.float32)
    targets = random.integers(0, 5, 6) if classes else random.dirichlet(np.ones(5), 6).astype(np.float32)
    gradient = np.empty_like(outputs)
    loss = SoftmaxCrossEntropy(smoothing).loss_and_gradient(np, outputs, targets, gradient)
    x = torch.tensor(outputs, requires_grad=True)
    expected = functional.cross_entropy(x, torch.tensor(targets), label_smoothing=smoothing)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    compare(gradient, x.grad.numpy())
