"""A network on a device, behind vectors of the host's."""

import numpy as np
import pytest

from mpidl.data import Batch
from mpidl.nn import Conv2d, Dense, MeanSquaredError, Network
from mpidl.nn.ondevice import OnDevice
from mpidl.nn.regularisation import Regularisation

LAYERS = [Conv2d(3, 3, "relu", stride=2, padding=1), Dense(4)]


def pair(cupy, dtype="float64", **more):
    """Return equal networks: on the host, and on a device."""
    host, given = (Network(LAYERS, (5, 7), dtype=dtype, seed=3, **more) for _ in range(2))
    return host, given, OnDevice(given, cupy)


def batches(dtype="float64", floats=False):
    """Batches of all sizes."""
    random = np.random.default_rng(2)
    for number, samples in enumerate((3, 8, 1, 8, 9)):
        inputs = random.integers(0, 9, (samples, 5, 7)).astype(dtype)
        targets = random.normal(size=(samples, 4)).astype(dtype) if floats else random.integers(0, 4, samples)
        yield Batch(inputs, targets, number)


def close(found, expected, **tolerance):
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-12, "atol": 1e-12} | tolerance))


@pytest.mark.parametrize("loss", [None, MeanSquaredError()])
@pytest.mark.parametrize("inputs", ["float64", "float32", "uint8"])
def test_it_computes_what_the_network_does(cupy, loss, inputs):
    host, _, device = pair(cupy, loss=loss)
    assert device.layout is not None
    for batch in batches(inputs, floats=loss is not None):
        if loss is not None:
            batch = batch._replace(targets=batch.targets.astype("float64"))
        device.parameters[:] = host.parameters  # in place, as engines do
        loss_of_host, expected = host.loss_and_gradient(batch)
        loss_of_device, gradient = device.loss_and_gradient(batch)
        # The gradient is the host's, and there at once.
        assert type(gradient) is np.ndarray
        close(gradient, expected)
        close(loss_of_device, loss_of_host)
        found, expected = device.evaluate(batch), host.evaluate(batch)
        close(found[0], expected[0])
        close(found[1], expected[1])
        host.parameters -= 0.1 * gradient


def test_single_precision_and_what_is_done_to_the_gradient(cupy):
    host, _, device = pair(cupy, "float32", regularisation=Regularisation(clip=0.01))
    for batch in batches("float32"):
        loss_of_host, expected = host.loss_and_gradient(batch)
        loss_of_device, gradient = device.loss_and_gradient(batch)
        assert gradient.dtype == np.float32
        close(gradient, expected, rtol=1e-4, atol=1e-6)
        close(loss_of_device, loss_of_host, rtol=1e-5)


def test_its_parameters_are_the_given_networks(cupy):
    _, given, device = pair(cupy)
    device.parameters[:] = 3
    assert (given.parameters == 3).all()


def test_another_vector_takes_the_place_of_its_parameters(cupy):
    host, _, device = pair(cupy)
    own, batch = device.parameters, next(iter(batches()))
    vector = 2 * host.parameters
    device.parameters = vector
    assert device.parameters is vector
    host.parameters = vector
    close(device.loss_and_gradient(batch)[1], host.loss_and_gradient(batch)[1])
    device.parameters = own
    assert device.parameters is own


def test_a_parameter_set_before_is_kept(cupy):
    network = Network(LAYERS, (5, 7))
    network.parameters[:] = 7
    assert (OnDevice(network, cupy).parameters == 7).all()
