"""Networks on a device, with their vectors there or in host memory."""

import numpy as np
import pytest

import fake_cupy
from mpidl.data import Batch
from mpidl.nn import Conv2d, Dense, MeanSquaredError, Network
from mpidl.nn.losses import Regularisation
from mpidl.nn.ondevice import Mirrored, OnDevice

LAYERS = [Conv2d(3, 3, "relu", stride=2, padding=1), Dense(4)]


def pair(cupy, model, dtype="float64", **more):
    """Return two equal networks on the host, and a model that computes the second one on a device."""
    host, given = (Network(LAYERS, (5, 7), dtype=dtype, seed=3, **more) for _ in range(2))
    return host, given, model(given, cupy)


def on_host(cupy, values):
    return values.get() if isinstance(values, cupy.ndarray) else values


def batches(dtype="float64", floats=False):
    """Batches of several sizes."""
    random = np.random.default_rng(2)
    for number, samples in enumerate((3, 8, 1, 8, 9)):
        inputs = random.integers(0, 9, (samples, 5, 7)).astype(dtype)
        targets = random.normal(size=(samples, 4)).astype(dtype) if floats else random.integers(0, 4, samples)
        yield Batch(inputs, targets, number)


def close(found, expected, **tolerance):
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-12, "atol": 1e-12} | tolerance))


@pytest.mark.parametrize("model", [OnDevice, Mirrored])
@pytest.mark.parametrize("loss", [None, MeanSquaredError()])
@pytest.mark.parametrize("inputs", ["float64", "float32", "uint8"])
def test_it_computes_what_the_network_does(cupy, model, loss, inputs):
    host, given, device = pair(cupy, model, loss=loss)
    for batch in batches(inputs, floats=loss is not None):
        if loss is not None:
            batch = batch._replace(targets=batch.targets.astype("float64"))
        loss_of_host, expected = host.loss_and_gradient(batch)
        loss_of_device, gradient = device.loss_and_gradient(batch)
        # The gradient lies where the parameters lie.
        assert type(gradient) is type(device.parameters) is (cupy.ndarray if model is OnDevice else np.ndarray)
        close(on_host(cupy, gradient), expected)
        close(loss_of_device, loss_of_host)
        found, after = device.evaluate(batch), host.evaluate(batch)
        close(found[0], after[0])
        close(found[1], after[1])
        host.parameters -= 0.1 * expected
        device.parameters -= 0.1 * gradient  # in place, as engines do
    device.copy_to_host()
    close(given.parameters, host.parameters)


class Recorded:
    """A model that shows the batches that it is given."""

    parameters = np.zeros(1)

    def on(self, xp):
        return self

    def loss_and_gradient(self, batch):
        self.batch = batch
        return 0.0, None


def test_a_batch_may_be_made_of_several_arrays(cupy):
    model = Recorded()
    device, text = OnDevice(model, cupy), object()
    for samples in (3, 5, 2):
        x, y, mask = np.arange(2.0 * samples).reshape(-1, 2), np.arange(samples), np.ones((samples, 4), bool)
        device.loss_and_gradient(Batch({"x": x, "more": [mask, 7]}, (y, y + 1, text, np.float64(3))))
        inputs, targets = model.batch.inputs, model.batch.targets
        assert set(inputs) == {"x", "more"}
        assert inputs["more"][1:] == [7]
        assert targets[2:] == (text, 3.0)
        for found, expected in ((inputs["x"], x), (inputs["more"][0], mask), (targets[0], y), (targets[1], y + 1)):
            assert type(found) is cupy.ndarray
            np.testing.assert_array_equal(on_host(cupy, found), expected)


@pytest.mark.parametrize("model", [OnDevice, Mirrored])
def test_single_precision_and_what_is_done_to_the_gradient(cupy, model):
    host, _, device = pair(cupy, model, "float32", regularisation=Regularisation(clip=0.01))
    for batch in batches("float32"):
        loss_of_host, expected = host.loss_and_gradient(batch)
        loss_of_device, gradient = device.loss_and_gradient(batch)
        assert gradient.dtype == np.float32
        close(on_host(cupy, gradient), expected, rtol=1e-4, atol=1e-6)
        close(loss_of_device, loss_of_host, rtol=1e-5)


def test_only_a_mirror_uploads_parameters_with_each_batch(cupy, monkeypatch):
    if cupy.ndarray is not fake_cupy.Array:
        pytest.skip("a GPU's arrays can't be watched")
    sizes = []
    upload = fake_cupy.Array.set
    monkeypatch.setattr(fake_cupy.Array, "set", lambda self, host: (sizes.append(host.size), upload(self, host))[1])
    for model, uploads in ((OnDevice, 0), (Mirrored, 10)):
        _, given, device = pair(cupy, model)
        sizes.clear()
        for batch in batches():
            device.loss_and_gradient(batch)
            device.evaluate(batch)
        assert sizes.count(given.layout.size) == uploads


def test_its_parameters_are_the_given_networks(cupy):
    _, given, device = pair(cupy, Mirrored)
    device.parameters[:] = 3
    assert (given.parameters == 3).all()


@pytest.mark.parametrize("model", [OnDevice, Mirrored])
def test_another_vector_takes_the_place_of_its_parameters(cupy, model):
    host, _, device = pair(cupy, model)
    own, batch = device.parameters, next(iter(batches()))
    vector = 2 * device.parameters
    device.parameters = vector
    assert device.parameters is vector
    host.parameters = on_host(cupy, vector)
    close(on_host(cupy, device.loss_and_gradient(batch)[1]), host.loss_and_gradient(batch)[1])
    device.parameters = own
    assert device.parameters is own


@pytest.mark.parametrize("model", [OnDevice, Mirrored])
def test_a_parameter_set_before_is_kept(cupy, model):
    network = Network(LAYERS, (5, 7))
    network.parameters[:] = 7
    assert (model(network, cupy).parameters == 7).all()
