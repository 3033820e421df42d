"""A PyTorch module computes on a GPU what it computes on the CPU."""

import numpy as np
import pytest
import torch

import fake_cupy
from mpidl.data import Batch
from mpidl.nn.ondevice import Mirrored, OnDevice
from mpidl.torch import TorchModel


@pytest.fixture
def gpu(cupy):
    """CuPy; PyTorch takes no arrays of what stands in for it."""
    if cupy.ndarray is fake_cupy.Array:
        pytest.skip("no GPU")
    return cupy


class Scaled(torch.nn.Module):
    """Takes two inputs, has statistics, a mask that can't be averaged and a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
        self.register_buffer("mask", torch.tensor([0.0] * 7 + [-torch.inf]))
        self.frozen = torch.nn.Parameter(torch.full((8,), 0.5), requires_grad=False)

    def forward(self, values, scale):
        inner = self.norm(self.first(values)) * self.frozen + self.mask
        return self.last(torch.relu(inner)) * scale[:, None]


def model():
    """Return the same model each time."""
    torch.manual_seed(3)
    return TorchModel(Scaled(), "cross_entropy", seed=1)


@pytest.mark.parametrize("placed", [OnDevice, Mirrored])
def test_losses_gradients_and_statistics(gpu, placed):
    host, given = model(), model()
    device = placed(given, gpu)
    random = np.random.default_rng(0)
    for number, samples in enumerate((6, 9, 4)):
        inputs = random.normal(size=(samples, 5)).astype("float32"), random.random(samples)
        batch = Batch(inputs, random.integers(0, 3, samples), number)
        loss, gradient = device.loss_and_gradient(batch)
        expected_loss, expected = host.loss_and_gradient(batch)
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert type(gradient) is (gpu.ndarray if placed is OnDevice else np.ndarray)
        found = gradient.get() if placed is OnDevice else gradient
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        host.parameters -= 0.1 * expected
        device.parameters -= 0.1 * gradient
        assert device.evaluate(batch)[0] == pytest.approx(host.evaluate(batch)[0], rel=1e-4)
    device.copy_to_host()
    np.testing.assert_allclose(given.parameters, host.parameters, rtol=1e-4, atol=1e-6)
