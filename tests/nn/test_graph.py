"""Networks whose layers branch and join; and gradients against finite differences, in float64."""

from itertools import product

import numpy as np
import pytest

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.nn import (
    ACTIVATIONS,
    LOSSES,
    Add,
    BatchNormalisation,
    Concatenate,
    Conv2d,
    Dense,
    Embedding,
    Flatten,
    MaxPool2d,
    Network,
)
from mpidl.nn.losses import Regularisation
from mpidl.rules import Sgd
from rows import in_turn

RESIDUAL = [
    Conv2d(3, 3, "tanh", padding="same", name="stem"),
    Conv2d(3, 3, "tanh", padding="same"),
    Conv2d(3, 3, padding="same", name="branch"),
    Add("tanh", inputs=("branch", "stem"), name="block"),
    MaxPool2d(2),
    Dense(3),
]
PARALLEL = [
    Dense(4, "tanh", name="wide"),
    Dense(3, "tanh", inputs=("inputs",), name="narrow"),
    Dense(2, "tanh", inputs=("wide",)),
    Concatenate(inputs=("wide", "narrow", "2-dense"), name="all"),
    Dense(3, "gelu", inputs=("all",), name="one"),
    Add(inputs=("one", "narrow")),
]
#: A layer that joins two values, both of which a later layer takes, too.
TWICE = [
    Dense(4, "tanh", name="one"),
    Dense(2, "tanh", inputs=("inputs",), name="other"),
    Concatenate(inputs=("one", "other"), name="first"),
    Concatenate(inputs=("other", "first", "one")),
    Dense(3),
]


def batch_for(shape, samples=5):
    random = np.random.default_rng(2)
    return Batch(random.normal(size=(samples, *shape)), random.integers(0, 3, samples))


@pytest.mark.parametrize(("layers", "shape"), [(RESIDUAL, (5, 4, 2)), (PARALLEL, (7,)), (TWICE, (3,))])
@pytest.mark.parametrize("regularisation", [Regularisation(), Regularisation(l2=0.3)])
def test_the_gradient_meets_finite_differences(layers, shape, regularisation):
    network = Network(layers, shape, dtype="float64", seed=3, regularisation=regularisation)
    batch = batch_for(shape)
    for samples in (5, 2):
        part = Batch(batch.inputs[:samples], batch.targets[:samples])
        gradient = network.loss_and_gradient(part)[1].copy()
        expected = differences(lambda part=part: network.loss_and_gradient(part)[0], network.parameters)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_layers_are_named_in_checkpoints_as_they_are_in_the_graph():
    names = [part.name for part in Network(RESIDUAL, (5, 4)).layout]
    assert names[:3] == ["stem/weight", "stem/bias", "1-conv2d/weight"]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Dense(3), Add(inputs=("0-dense", "x"))], "model.layer[1].inputs: no layer 'x' before this one"),
        ([Dense(3, name="stem"), Add(inputs=("stm", "inputs"))], "did you mean 'stem'?"),
        ([Dense(3), Add()], "model.layer[1].inputs: missing, add takes the outputs of several layers"),
        ([Dense(3), Dense(3, inputs=("0-dense", "inputs"))], "model.layer[1].inputs: 2 names, dense takes one"),
        ([Dense(3), Dense(3, inputs=("inputs",))], "model.layer[0]: no layer takes the outputs of '0-dense'"),
        ([Dense(3), Add(inputs=("0-dense", "0-dense"))], "model.layer[1].inputs: a name occurs twice"),
        ([Dense(4), Add(inputs=("0-dense", "inputs"))], "model.layer[1]: inputs: shapes (4,) and (3,), expected the"),
        (
            [Embedding(5, 2), Concatenate(inputs=("0-embedding", "inputs"))],
            "model.layer[1]: inputs: shapes (3, 2) and (3,), expected the same except for the last axis",
        ),
        (
            [Dense(4, name="inputs")],
            "model.layer[0].name: 'inputs' is the name of the network's inputs, expected a unique one",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(layers, message):
    with pytest.raises(UsageError) as error:
        Network(layers, (3,))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_clipping_bounds_the_norm_of_what_is_trained():
    layers = [Dense(9, "tanh"), BatchNormalisation(momentum=0.5), Dense(3)]
    batch = batch_for((4,), 30)
    free = Network(layers, (4,), dtype="float64").loss_and_gradient(batch)[1].copy()
    network = Network(layers, (4,), dtype="float64", regularisation=Regularisation(clip=0.01))
    gradient = network.loss_and_gradient(batch)[1]
    statistics = np.zeros(len(gradient), bool)
    for part in network.statistics:
        statistics[slice(*part)] = True
    assert np.linalg.norm(gradient[~statistics]) == pytest.approx(0.01)
    np.testing.assert_array_equal(gradient[statistics], free[statistics])
    loose = Network(layers, (4,), dtype="float64", regularisation=Regularisation(clip=100.0))
    np.testing.assert_array_equal(loose.loss_and_gradient(batch)[1], free)


def test_running_statistics_go_to_those_of_the_data_and_serve_evaluation():
    random = np.random.default_rng(0)
    network = Network([BatchNormalisation(momentum=0.1), Flatten(), Dense(2)], (3, 2), dtype="float64")
    assert [part.size for part in network.statistics] == [2, 2]
    for _ in range(300):
        inputs = random.normal([1.0, -4.0], [2.0, 0.5], size=(64, 3, 2))
        gradient = network.loss_and_gradient(Batch(inputs, random.integers(0, 2, 64)))[1]
        Sgd(0.01).update(network.parameters, (), gradient, 1, sparing=network.statistics)
    views = network.layout.views(network.parameters)
    np.testing.assert_allclose(views["0-batch_normalisation/mean"], [1.0, -4.0], atol=0.1)
    np.testing.assert_allclose(views["0-batch_normalisation/variance"], [4.0, 0.25], rtol=0.15)
    single = network.predict(inputs[:1])
    np.testing.assert_allclose(single, network.predict(inputs)[:1], rtol=1e-12)


STEP = 1e-6


def network_and_batch(activation, loss, targets, last="identity"):
    layers = [Dense(7, activation), Dense(5, activation), Dense(3, last)]
    network = Network(layers, (3, 1, 2), loss=LOSSES[loss](), dtype="float64", seed=3)
    random = np.random.default_rng(5)
    network.parameters[:] = random.normal(size=network.layout.size)
    inputs = random.normal(size=(9, 3, 1, 2))
    classes = random.integers(0, 3, 9)
    return network, Batch(inputs, classes if targets == "classes" else random.uniform(size=(9, 3)))


def differences(loss, vector):
    """Central differences of loss() with respect to each element of a vector that it reads."""
    gradient = np.empty_like(vector)
    for index, value in enumerate(vector):
        vector[index] = value + STEP
        above = loss()
        vector[index] = value - STEP
        below = loss()
        vector[index] = value
        gradient[index] = (above - below) / (2 * STEP)
    return gradient


@pytest.mark.parametrize(
    ("activation", "targets", "loss"),
    in_turn(ACTIVATIONS, list(product(["classes", "floats"], LOSSES)), each=len(LOSSES)),
)
def test_gradient_meets_finite_differences(activation, loss, targets):
    network, batch = network_and_batch(activation, loss, targets)
    gradient = network.loss_and_gradient(batch)[1].copy()
    expected = differences(lambda: network.loss_and_gradient(batch)[0], network.parameters)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_passes_through_the_last_layers_activation(activation):
    network, batch = network_and_batch("tanh", "mean_squared_error", "floats", last=activation)
    gradient = network.loss_and_gradient(batch)[1].copy()
    expected = differences(lambda: network.loss_and_gradient(batch)[0], network.parameters)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
