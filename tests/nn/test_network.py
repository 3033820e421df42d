"""A network's vectors: layout, initial values, buffers, batches; and networks from configuration sections."""

import tracemalloc

import numpy as np
import pytest

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.metrics.figures import Figures
from mpidl.nn import (
    LAYERS,
    LOSSES,
    Activation,
    Conv2d,
    Dense,
    Layer,
    MeanSquaredError,
    Network,
    SoftmaxCrossEntropy,
    from_config,
)
from mpidl.parameters import Range

PERCEPTRON = [Dense(11, "relu"), Dense(7, "tanh", "he_normal", name="middle"), Dense(3)]


def network(layers=PERCEPTRON, input_shape=(13,), **options):
    return Network(layers, input_shape, **options)


def batch_of(samples, input_shape=(13,), classes=3, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    return Batch(random.normal(size=(samples, *input_shape)).astype(dtype), random.integers(0, classes, samples))


def test_layout_names_weights_and_biases_by_layer():
    model = network(input_shape=(13,))
    assert [(part.name, part.shape) for part in model.layout] == [
        ("0-dense/weight", (13, 11)),
        ("0-dense/bias", (11,)),
        ("middle/weight", (11, 7)),
        ("middle/bias", (7,)),
        ("2-dense/weight", (7, 3)),
        ("2-dense/bias", (3,)),
    ]
    assert (model.input_shape, model.output_shape, model.dtype) == ((13,), (3,), "float32")


def test_describing_allocates_nothing():
    tracemalloc.start()
    model = network([Dense(100_000), Dense(10)], (100_000,))
    assert model.layout.size == 100_000 * 100_001 + 10 * 100_001
    assert model.initial(Range(model.layout.size - 7, model.layout.size)).tolist() == [0] * 7
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_initial_values_depend_on_seed_and_place_alone():
    parts = network(seed=4).layout.views(network(seed=4).parameters)
    wider = network([*PERCEPTRON[:2], Dense(5)], seed=4)
    wider = wider.layout.views(wider.parameters)
    other = network(seed=5).layout.views(network(seed=5).parameters)
    for name in ("0-dense/weight", "middle/weight"):
        np.testing.assert_array_equal(parts[name], wider[name])
        assert not np.array_equal(parts[name], other[name])
    square = network([Dense(13), Dense(13)])
    first, second = (square.layout.views(square.parameters)[f"{index}-dense/weight"] for index in (0, 1))
    assert not np.isin(first, second).any()
    assert not parts["0-dense/bias"].any()
    assert np.abs(parts["0-dense/weight"]).max() <= np.sqrt(6 / 24)


@pytest.mark.parametrize("whole", [(-1, 3), (3, 1), (0, 10**6)])
def test_initial_of_a_range_outside_is_an_error(whole):
    with pytest.raises(ValueError, match=r"parameters .* of 262"):
        network().initial(Range(*whole))


def reference(model, batch):
    """Loss and gradient of PERCEPTRON in plain NumPy, float64."""
    w = {name: view.astype(np.float64) for name, view in model.layout.views(model.parameters).items()}
    x, t = batch.inputs.astype(np.float64).reshape(len(batch.inputs), -1), np.eye(3)[batch.targets]
    h = np.maximum(x @ w["0-dense/weight"] + w["0-dense/bias"], 0)
    k = np.tanh(h @ w["middle/weight"] + w["middle/bias"])
    e = np.exp(k @ w["2-dense/weight"] + w["2-dense/bias"])
    p = e / e.sum(axis=1, keepdims=True)
    dz = (p - t) / len(x)
    dk = dz @ w["2-dense/weight"].T * (1 - k**2)
    dh = dk @ w["middle/weight"].T * (h > 0)
    parts = [x.T @ dh, dh.sum(axis=0), h.T @ dk, dk.sum(axis=0), k.T @ dz, dz.sum(axis=0)]
    return -np.log((p * t).sum(axis=1)).mean(), np.concatenate([part.ravel() for part in parts])


@pytest.mark.parametrize(("dtype", "accuracy"), [("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("input_shape", [(13,), (13, 1), (1, 13, 1)])
def test_batches_of_any_size_in_any_order(dtype, accuracy, input_shape):
    model = network(input_shape=input_shape, dtype=dtype)
    for samples in (5, 17, 1, 17, 5, 31):
        batch = batch_of(samples, input_shape, dtype=np.float32 if samples % 2 else np.float64, seed=samples)
        loss, gradient = model.loss_and_gradient(batch)
        expected_loss, expected = reference(model, batch)
        assert gradient.dtype == dtype
        assert loss == pytest.approx(expected_loss, rel=10 * accuracy)
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=accuracy)


def test_parameters_are_written_in_place_and_the_gradient_reused():
    model, batch = network(), batch_of(9)
    first_loss, gradient = model.loss_and_gradient(batch)
    for _ in range(20):
        model.parameters[:] -= 0.3 * gradient
        loss, same = model.loss_and_gradient(batch)
    assert same is gradient
    assert loss < first_loss / 2


def test_batch_is_kept_as_it_is():
    batch = batch_of(9)
    inputs, targets = batch.inputs.copy(), batch.targets.copy()
    network().loss_and_gradient(batch)
    np.testing.assert_array_equal(batch.inputs, inputs)
    np.testing.assert_array_equal(batch.targets, targets)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_a_warm_step_allocates_no_activation_and_no_tensor(loss, activation):
    """Allow for the scratch buffer of 8192 elements that NumPy's ufuncs allocate when they broadcast or convert."""
    model = network([Dense(257, activation), Dense(255, activation), Dense(9)], (259,), loss=LOSSES[loss]())
    batches = [batch_of(512, (259,), 9), batch_of(501, (259,), 9), batch_of(500, (259,), 9, np.float64)]
    for batch in batches:
        model.loss_and_gradient(batch)
    tracemalloc.start()
    model.loss_and_gradient(batches[0])
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for batch in batches * 3:
        model.loss_and_gradient(batch)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 4096
    assert peak - before < 8192 * 4 + 12 * 1024 < 500 * 255 * 4 / 10


class Double(Layer):
    """A layer that adds its two inputs."""

    type, joins = "double", True

    def output_shape(self, first, second):
        return first

    def parameters(self, first, second):
        return {}

    def buffers(self, first, second):
        return {}

    def forward(self, work, inputs, outputs):
        np.add(*inputs, out=outputs)

    def backward_inputs(self, work, inputs, outputs, output_gradient, input_gradient):
        for gradient in input_gradient:
            gradient[:] = output_gradient


def test_the_bytes_of_activations_are_those_that_a_batch_allocates():
    layers = [
        Conv2d(channels=24, size=3, activation="gelu"),
        Activation(activation="relu", name="twice"),
        Activation(activation="tanh", name="other"),
        Double(inputs=("twice", "other")),
        Dense(9),
    ]
    model = network(layers, (15, 16, 3))
    batch = batch_of(64, (15, 16, 3), 9)
    model.loss_and_gradient(batch_of(1, (15, 16, 3), 9))
    tracemalloc.start()
    model.loss_and_gradient(batch)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert allocated == pytest.approx(model.activation_bytes(64), rel=0.002)


def test_evaluate_sums_losses_and_counts_correct_predictions():
    model = network(dtype="float64")
    batch, rest = batch_of(31, seed=1), batch_of(6, seed=2)
    expected = [reference(model, Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1]))[0] for i in range(31)]
    loss, correct, outputs = model.evaluate(batch)[:3]
    assert np.array_equal(outputs, model.predict(batch.inputs))
    loss, correct = model.evaluate(batch)[:2]
    assert loss == pytest.approx(sum(expected), rel=1e-12)
    assert correct == (model.predict(batch.inputs).argmax(axis=1) == batch.targets).sum()
    assert 0 < correct < 31
    weighed = batch._replace(weight=4.5)
    figures = Figures().values(np.array(model.evaluate(weighed).sums(weighed)))
    assert figures == pytest.approx({"loss": sum(expected) / 31, "accuracy": correct / 31})
    assert model.evaluate(rest)[0] == pytest.approx(6 * model.loss_and_gradient(rest)[0], rel=1e-12)


def test_predict_gives_an_array_of_its_own():
    model = network()
    first = model.predict(batch_of(4, seed=1).inputs)
    kept = first.copy()
    model.predict(batch_of(4, seed=2).inputs)
    assert first.shape == (4, 3)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("shape", "targets", "message"),
    [
        ((5, 12), np.zeros(5, int), "a batch of inputs (5, 12), the network takes (n, 13)"),
        ((5, 13), np.zeros(4, int), "targets (4,) of int64, outputs (5, 3) take integers (5,) or floats (5, 3)"),
        ((5, 13), np.zeros((5, 1)), "targets (5, 1) of float64, outputs (5, 3) take integers (5,) or floats (5, 3)"),
        ((5, 13), np.zeros(5), "targets (5,) of float64, outputs (5, 3) take integers (5,) or floats (5, 3)"),
        ((5, 13), np.arange(5), "data: labels 0 to 4, the last layer has 3 units, one for each class"),
    ],
)
def test_batches_that_do_not_fit(shape, targets, message):
    model = network()
    for use in (model.loss_and_gradient, model.evaluate):
        with pytest.raises(UsageError) as caught:
            use(Batch(np.zeros(shape), targets))
        assert str(caught.value) == message


TAKEN = "is the name of layer 0, expected a unique one"
UNFIT = "model.layer[0].name: expected a name without '/' and control characters, found "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": []}, "model.layer: no layer, expected at least one"),
        ({"layers": ["dense"]}, "model.layer: expected layers, such as [mpidl.nn.Dense(10)], found ['dense']"),
        ({"layers": [Dense]}, f"model.layer: expected layers, such as [mpidl.nn.Dense(10)], found {[Dense]}"),
        ({"input_shape": None}, "Network.input_shape: expected list of int, found None"),
        ({"input_shape": 3}, "Network.input_shape: expected list of int, found 3"),
        ({"input_shape": "ab"}, "Network.input_shape: expected list of int, found 'ab'"),
        ({"input_shape": ((3,),)}, "Network.input_shape: expected list of int, found ((3,),)"),
        ({"layers": [Dense(3, name="a"), Dense(4, name="a")]}, f"model.layer[1].name: 'a' {TAKEN}"),
        ({"layers": [Dense(3, name="1-dense"), Dense(4)]}, f"model.layer[1].name: '1-dense' {TAKEN}"),
        ({"layers": [Dense(3, name="a/b")]}, f"{UNFIT}'a/b'"),
        ({"layers": [Dense(3, name="\x1b[31m")]}, f"{UNFIT}'\\x1b[31m'"),
        ({"input_shape": (4, 0)}, "model.layer[0]: inputs of shape (4, 0) have no elements"),
        ({"dtype": "float16"}, "dtype: expected 'float32' or 'float64', found 'float16'"),
    ],
)
def test_networks_that_can_not_be(options, message):
    with pytest.raises(UsageError) as caught:
        network(**options)
    assert str(caught.value) == message


def test_a_layers_complaint_about_its_input_names_the_layer():
    class Picky(Dense):
        def output_shape(self, input_shape):
            raise UsageError(f"needs images, found inputs of shape {input_shape}")

    with pytest.raises(UsageError) as caught:
        network([Dense(4), Picky(3)])
    assert str(caught.value) == "model.layer[1]: needs images, found inputs of shape (4,)"


def test_softmax_cross_entropy_is_the_default_loss():
    assert isinstance(network().loss, SoftmaxCrossEntropy)


DENSE = {"type": "dense", "units": 5}

KNOWN = ", ".join(sorted(LAYERS))


def build(sections, loss="softmax_cross_entropy"):
    return from_config(sections, loss, (4, 3), seed=7)


def test_sections_become_layers():
    sections = [
        {"type": "dense", "units": 9, "activation": "relu", "initialiser": "he_normal", "name": "first"},
        {"type": "dense", "units": 2},
    ]
    network = from_config(sections, "mean_squared_error", [4, 3], seed=7, dtype="float64")
    assert network.layers == (Dense(9, "relu", "he_normal", name="first"), Dense(2))
    assert isinstance(network.loss, MeanSquaredError)
    assert (network.input_shape, network.seed, network.dtype) == ((4, 3), 7, "float64")
    assert [part.name for part in network.layout][::2] == ["first/weight", "1-dense/weight"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"units": 5}, ".type: missing; known: " + KNOWN),
        ({"type": "dens", "units": 5}, ".type: unknown name 'dens', did you mean 'dense'?"),
        ({"type": ["dense"]}, ".type: unknown name ['dense'], did you mean 'dense'?"),
        ({"type": 3}, ".type: unknown name 3; known: " + KNOWN),
        ({"type": "dense", "unit": 5}, ".unit: unknown key, did you mean 'units'?"),
        ({"type": "dense"}, ".units: missing, expected int >= 1"),
        (DENSE | {"units": "abc"}, ".units: expected int >= 1, found 'abc'"),
        (DENSE | {"units": 0}, ".units: expected int >= 1, found 0"),
        (DENSE | {"units": True}, ".units: expected int >= 1, found True"),
        (DENSE | {"units": 1.5}, ".units: expected int >= 1, found 1.5"),
        (DENSE | {"name": 3}, ".name: expected str, found 3"),
        (DENSE | {"activation": "rleu"}, ".activation: unknown name 'rleu', did you mean 'relu'?"),
        (DENSE | {"initialiser": "zero"}, ".initialiser: unknown name 'zero', did you mean 'zeros'?"),
        (DENSE | {"name": "0-dense"}, ".name: '0-dense' is the name of layer 0, expected a unique one"),
    ],
)
def test_wrong_section(section, message):
    with pytest.raises(UsageError) as caught:
        build([DENSE, section])
    assert str(caught.value) == f"model.layer[1]{message}"


def test_wrong_loss():
    with pytest.raises(UsageError, match=r"^model\.loss: unknown name 'mean_square', did you mean 'mean_sq.*'\?$"):
        build([DENSE], loss="mean_square")


def test_no_sections():
    with pytest.raises(UsageError, match=r"^model\.layer: no layer, expected at least one$"):
        build([])


def test_outputs_must_be_the_datas_classes():
    network = build([{"type": "dense", "units": 12}])
    shape = network.input_shape
    network.check_data(shape, 12)
    network.check_data(shape, None)
    with pytest.raises(UsageError, match=r"^model\.layer: the last layer has 12 units, the data 10 classes$"):
        network.check_data(shape, 10)
    with pytest.raises(UsageError, match=r"^model: inputs of shape \(.*\), the data's are \(3, 5, 7\)$"):
        network.check_data((3, 5, 7), 12)


def test_names_given_to_a_layer_are_checked_there_too():
    with pytest.raises(UsageError, match=r"^activation: unknown name 'rleu', did you mean 'relu'\?$"):
        Dense(3, "rleu")
